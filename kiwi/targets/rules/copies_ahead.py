"""A resharded copy may begin beside the matmul in front of its reader, to overlap with it."""

from kiwi.targets.rule import Rule, stating

RULE = Rule(
    name="copies_ahead",
    does="Copies of operands that are made again may begin ahead of their readers.",
    component="LatencyHidingScheduler",
    observed="jax 0.10.2, H100; libtpu 0.0.42.1, v5e",
    evidence=("tests/planners", "benchmarks/schedules"),
    states=stating(copies_ahead=True),
)
