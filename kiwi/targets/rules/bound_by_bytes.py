"""Accelerators compute functions while they move bytes.

On CPUs the time of a map depends on its function, and the time of a reduction on its dimensions.
The rule states no fact in Python: the fact is data in `kiwi/mesh/backends.toml`, because
`kiwi.mesh` prices moves and knows no programs.
"""

from kiwi.targets.rule import Rule
from kiwi.targets.witness import NotShown

RULE = Rule(
    name="bound_by_bytes",
    does="What a kernel maps, sums up or transposes takes what reading and writing it takes; "
    "functions are computed meanwhile.",
    component="hardware",
    observed="H100, v5e, and CPUs of two machines",
    evidence=("tests/problem/test_recorded_seconds.py", "benchmarks/replay"),
    witness=NotShown("It is the hardware's, and shows in measured times alone."),
)
