"""XLA:CPU's scheduler needs more memory in its own order than in the plan's.

Plans have a barrier at every step there. Other schedulers keep memory low by themselves, and plans
for them begin with the barriers that they need.
"""

from kiwi.targets.rule import Rule, stating

RULE = Rule(
    name="cpu_schedule",
    does="The scheduler does not keep memory low.",
    component="scheduler of XLA:CPU",
    observed="jax 0.10.2",
    evidence=("benchmarks/fidelity",),
    states=stating(schedules_for_memory=False),
)
