"""Name scopes that tie the instructions of a compiled program to the units of a plan.

`kiwi_12` is the first computation of unit 12, `kiwi_12_again` a later one, and `reshard` within
either brings an operand into the layout that the unit expects.
"""

import re
from dataclasses import dataclass

RESHARD_SCOPE = "reshard"

_PATTERN = re.compile(rf"kiwi_(?P<unit>\d+)(?P<again>_again)?(?P<reshard>/{RESHARD_SCOPE})?")


@dataclass(frozen=True)
class Scope:
    """The role of an instruction in a plan."""

    unit: int
    is_recomputed: bool
    is_resharded: bool


def scope_name(unit: int, *, again: bool = False) -> str:
    """The name of the scope of a unit's computation."""
    return f"kiwi_{unit}_again" if again else f"kiwi_{unit}"


def scope_of(op_name: str) -> Scope | None:
    """Reads the scope from an instruction's `op_name`; None if it has none."""
    match = _PATTERN.search(op_name)
    if match is None:
        return None
    return Scope(int(match["unit"]), bool(match["again"]), bool(match["reshard"]))
