"""When values occupy memory: intervals of unit indices, given a residency.

1. An argument that is not donated is held throughout.
2. A donated argument is held until the result that takes over its buffer is computed, and the
   result from then on.
3. Any other result of the function is held throughout: XLA allocates it before the step
   starts, and puts nothing else there.
4. Any other value is held from its computation through its last reader. Where that reader runs
   next and only maps elements (`kiwi.hlo.units.overwritable`), it writes its result over the
   value, which then ends just before. A later reader finds the value behind a barrier, see
   `kiwi.plan.fences`; XLA does not write over such operands (10 models of `benchmarks/fidelity`,
   CPU and GPU).
5. While a unit runs it also holds its workspace.
"""

import functools
from dataclasses import dataclass

from kiwi.hlo.units import Unit, UnitGraph, overwritable
from kiwi.solver.problem import Interval
from kiwi.strategy.residency import Residency, UnitResidency


@dataclass(frozen=True)
class Lifetimes:
    """Precomputed facts of a unit graph that lifetimes depend on.

    `overwritten` are the units whose result their last reader may overwrite.
    """

    units: UnitGraph
    overwritten: frozenset[int]

    @classmethod
    def of(cls, units: UnitGraph) -> "Lifetimes":
        """Finds the values that are overwritten in place."""
        found = set()
        for unit in units.units:
            victim = _overwrites(units, unit)
            if victim is not None:
                found.add(victim)
        return cls(units, frozenset(found))

    @property
    def horizon(self) -> int:
        """The number of points of time."""
        return max(1, len(self.units.units))

    def of_argument(self, argument: int, local_bytes: int) -> tuple[Interval, ...]:
        """Cases 1 and 2."""
        end = self._end_of_argument.get(argument, self.horizon)
        return (Interval(0, end, local_bytes),)

    @functools.cached_property
    def _end_of_argument(self) -> dict[int, int]:
        """Case 2: when the buffer of a donated argument passes to a result."""
        producer = self.units.producer
        return {source: producer[r] for r, source in self.units.aliased_results.items()}

    def of_unit(
        self,
        unit: Unit,
        residency: UnitResidency,
        option: Residency,
        local_bytes: int,
        workspace_bytes: int,
    ) -> tuple[Interval, ...]:
        """Cases 3 to 5 for one option of a unit."""
        starts = [unit.index]
        if option.recompute_at is not None:
            starts.append(option.recompute_at)
        intervals = [
            Interval(start, end, local_bytes) for start, end in self._lives(unit, residency, option)
        ]
        if workspace_bytes:
            intervals += [Interval(t, t + 1, workspace_bytes) for t in starts]
        return tuple(intervals)

    def _lives(
        self, unit: Unit, residency: UnitResidency, option: Residency
    ) -> list[tuple[int, int]]:
        """Half-open intervals in which the unit's results exist."""
        if self._is_fresh_result(unit):
            return [(0, self.horizon)]
        in_place = unit.index in self.overwritten and option.end == residency.last_use
        end = max(option.end + (0 if in_place else 1), unit.index + 1)
        if option.recompute_at is None:
            return [(unit.index, end)]
        first_end = max(residency.last_forward_use, unit.index) + 1
        return [(unit.index, first_end), (option.recompute_at, end)]

    def _is_fresh_result(self, unit: Unit) -> bool:
        """Case 3; a unit with several results counts if any of them is one."""
        results = self.units.graph.program.result_values
        return any(o in results and o not in self.units.aliased_results for o in unit.outputs)


def _overwrites(units: UnitGraph, unit: Unit) -> int | None:
    """The unit whose result `unit` overwrites: its neighbour's, read last here, as it is."""
    if any(output in units.aliased_results for output in unit.outputs):
        return None
    for value in overwritable(units.graph, unit):
        is_neighbour = units.producer.get(value) == unit.index - 1
        if is_neighbour and _dies_at(units, value, unit.index):
            return unit.index - 1
    return None


def _dies_at(units: UnitGraph, value: int, time: int) -> bool:
    producer = units.producer.get(value)
    if producer is None or value in units.graph.program.result_values:
        return False
    outputs = units.units[producer].outputs
    return len(outputs) == 1 and units.readers[value][-1] == time
