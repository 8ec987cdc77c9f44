"""A graph rewritten by a rule: what is recomputed is fixed before anything is sharded.

Every unit has a single residency. With R the units that the rule recomputes, and H(u) the time
at which u of R runs again,

1. H(u) is the earliest of u's own first reader behind the forward pass and of H(v) of its
   readers v in R: as late as possible, and once only. A unit of a loop's body runs again in the
   body of the loop that reads it; one outside of that loop before it.
2. A unit outside R is kept until its last reader, or until the last H(v) of its readers in R.
3. A unit that nothing reads behind the forward pass, itself or through R, is not run again.
"""

from collections.abc import Set

from kiwi.hlo.graph import Phase
from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.memory.residency import (
    Residency,
    UnitResidency,
    last_use,
    may_be_recomputed,
    with_life,
)


def rewritten(units: UnitGraph, recomputed: Set[int]) -> tuple[UnitResidency, ...]:
    """The only residency of every unit, in order; `recomputed` are indices of units.

    Units that cannot be recomputed, are results of the function or lie behind the forward pass
    are kept whatever the rule says.
    """
    again = _times(units, {u for u in recomputed if may_run_again(units, units.units[u])})
    return tuple(_residency(units, unit, again) for unit in units.units)


def may_run_again(units: UnitGraph, unit: Unit) -> bool:
    """Whether a rule may have the unit run a second time."""
    return unit.phase is Phase.FORWARD and may_be_recomputed(units, unit)


def _times(units: UnitGraph, recomputed: Set[int]) -> dict[int, int]:
    """Cases 1 and 3: H(u) of the units that run again. Readers come behind what they read."""
    found: dict[int, int] = {}
    for unit in reversed(units.units):
        if unit.index not in recomputed:
            continue
        uses = units.uses[unit.index]
        times = [u.time for u in uses if u.is_late]
        times += [found[u.reader] for u in uses if u.reader in found]
        if times:
            found[unit.index] = min(units.entry(unit.loop, time) for time in times)
    return found


def _residency(units: UnitGraph, unit: Unit, again: dict[int, int]) -> UnitResidency:
    uses, at = units.uses[unit.index], again.get(unit.index)
    lasts = [u.time for u in uses if u.is_late]
    lasts += [again[u.reader] for u in uses if u.reader in again]
    # A recomputed value is held again only for late readers and those that run again.
    end = max(lasts if at is not None else [last_use(units, unit), *lasts])
    return with_life(units, unit, [Residency(at, end)])
