"""Name scopes that map the instructions of a compiled program to the units of a plan.

Scope `kiwi_12` contains the first computation of unit 12, and scope `kiwi_12_again` each
recomputation. The inner scope `reshard` contains the resharding of operands to the layouts that the
unit expects.
"""

import re
from dataclasses import dataclass

RESHARD_SCOPE = "reshard"
"""The name of the inner scope that reshards operands."""

_PATTERN = re.compile(rf"kiwi_(?P<unit>\d+)(?P<again>_again)?(?P<reshard>/{RESHARD_SCOPE})?")


@dataclass(frozen=True)
class Scope:
    """The role of an instruction in a plan.

    - `unit`: the index of the unit.
    - `is_recomputed`: whether the instruction belongs to a recomputation of the unit.
    - `is_resharded`: whether the instruction reshards an operand of the unit.
    """

    unit: int
    is_recomputed: bool
    is_resharded: bool


def scope_name(unit: int, *, again: bool = False) -> str:
    """Returns the name of the scope of a unit's first computation, or of a later one (`again`)."""
    return f"kiwi_{unit}_again" if again else f"kiwi_{unit}"


def scope_of(op_name: str) -> Scope | None:
    """Returns the scope that an instruction's `op_name` contains; None if it contains none."""
    match = _PATTERN.search(op_name)
    if match is None:
        return None
    return Scope(int(match["unit"]), bool(match["again"]), bool(match["reshard"]))
