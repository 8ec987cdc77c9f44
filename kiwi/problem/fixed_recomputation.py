"""A graph rewritten by a rule: what is recomputed is fixed before anything is sharded.

Every unit has a single residency. With R the units that the rule recomputes, and H(u) the time
at which u of R runs again,

1. H(u) is the earliest of u's own first reader behind the forward pass and of H(v) of its
   readers v in R: as late as possible, and once only.
2. A unit outside R is kept until its last reader, or until the last H(v) of its readers in R.
3. A unit that nothing reads behind the forward pass, itself or through R, is not run again.
"""

from collections.abc import Set

from kiwi.hlo.graph import Phase
from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.memory.residency import Residency, UnitResidency


def rewritten(units: UnitGraph, recomputed: Set[int]) -> tuple[UnitResidency, ...]:
    """The only residency of every unit, in order; `recomputed` are indices of units.

    Units that cannot be recomputed, are results of the function or lie behind the forward pass
    are kept whatever the rule says.
    """
    again = _times(units, {u for u in recomputed if may_be_recomputed(units, units.units[u])})
    return tuple(_residency(units, unit, again) for unit in units.units)


def may_be_recomputed(units: UnitGraph, unit: Unit) -> bool:
    """Whether a plan may run the unit a second time."""
    is_result = any(o in units.graph.program.result_values for o in unit.outputs)
    return unit.may_recompute and unit.phase is Phase.FORWARD and not is_result


def _times(units: UnitGraph, recomputed: Set[int]) -> dict[int, int]:
    """Cases 1 and 3: H(u) of the units that run again. Readers come behind what they read."""
    found: dict[int, int] = {}
    for unit in reversed(units.units):
        if unit.index not in recomputed:
            continue
        late = [r for r in _readers(units, unit) if units.units[r].phase is not Phase.FORWARD]
        times = [*late, *(found[r] for r in _readers(units, unit) if r in found)]
        if times:
            found[unit.index] = min(times)
    return found


def _residency(units: UnitGraph, unit: Unit, again: dict[int, int]) -> UnitResidency:
    if any(output in units.graph.program.result_values for output in unit.outputs):
        last = len(units.units) - 1
        return UnitResidency(last, last, (Residency(None, last),))
    readers = _readers(units, unit)
    last = max(readers, default=unit.index)
    at = again.get(unit.index)
    late = [r for r in readers if units.units[r].phase is not Phase.FORWARD]
    lasts = [*late, *(again[r] for r in readers if r in again)]
    # A recomputed value is held again only for late readers and those that run again.
    end = max(lasts if at is not None else [last, *lasts])
    forward = [r for r in readers if units.units[r].phase is Phase.FORWARD]
    return UnitResidency(max(forward, default=unit.index), last, (Residency(at, end),))


def _readers(units: UnitGraph, unit: Unit) -> tuple[int, ...]:
    return tuple(sorted({r for o in unit.outputs for r in units.readers.get(o, ())}))
