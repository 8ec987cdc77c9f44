"""When values occupy memory: intervals of unit indices, given a residency.

1. An argument that is not donated is held throughout.
2. A donated argument is held until the result that takes over its buffer is computed, and the
   result from then on.
3. Any other result of the function is held throughout: XLA allocates it before the step
   starts, and puts nothing else there.
4. Any other value is held from its computation through its last reader. Where that reader only
   maps elements (`kiwi.hlo.in_place`), it writes over the value, which then ends just before. It
   has to be the next unit, or to read what a library call yielded: other readers find the value
   behind a barrier, see `kiwi.emit.barriers`, and XLA does not write over such operands (10 models
   of `benchmarks/fidelity`, CPU and GPU).
5. While a unit runs it also holds its workspace. What is recomputed for one reader runs one after
   the other, but at one point of time: copies of operands, which are many, are left out there.
6. What lies in host memory (`kiwi.hlo.host_memory`) takes none; what is fetched from there is as in
   4.

In the body of an opened loop (`kiwi.hlo.loops`) the same holds within one iteration, and

7. What a loop reads from outside is held until its last iteration ends.
8. What is read outside of the loop that it was computed in, by another one or as a result, is
   stacked: that takes its bytes times the iterations, from before the first iteration.
9. What an iteration starts from is held in one place for the whole loop. What it hands on is
   written there, unless the iteration still reads the former value when it is computed.
10. An element of what is stacked is copied for each reader, while that runs.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from kiwi.hlo.in_place import is_of_library, overwritable, overwritable_by_operand
from kiwi.hlo.loops import CARRY, SLICE, STACK
from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.memory.residency import Residency, UnitResidency
from kiwi.solver.problem import Interval


@dataclass(frozen=True)
class Lifetimes:
    """Precomputed facts of a unit graph that lifetimes depend on.

    `overwritten` are pairs of a unit and a reader that may overwrite its result, if nothing reads
    it any more, `handed_on` the units that write theirs where an iteration keeps what the next one
    starts from.
    """

    units: UnitGraph
    overwritten: frozenset[tuple[int, int]]
    handed_on: frozenset[int] = frozenset()

    @classmethod
    def of(cls, units: UnitGraph, target: str) -> "Lifetimes":
        """Finds the values that a compiler, one of `hoisted.TARGETS`, overwrites in place."""
        victims = ((_overwrites(units, unit, target), unit.index) for unit in units.units)
        found = {(victim, reader) for victim, reader in victims if victim is not None}
        return cls(units, frozenset(found), frozenset(_handed_on(units)))

    @property
    def horizon(self) -> int:
        """The number of points of time."""
        return max(1, len(self.units.units))

    def of_argument(self, argument: int, local_bytes: int) -> tuple[Interval, ...]:
        """Cases 1, 2 and 6."""
        if argument in self.units.graph.program.host_values:
            return ()
        end = self._end_of_argument.get(argument, self.horizon)
        return (Interval(0, end, local_bytes),)

    @functools.cached_property
    def _end_of_argument(self) -> dict[int, int]:
        """Case 2: when the buffer of a donated argument passes to a result."""
        producer = self.units.producer
        return {source: producer[r] for r, source in self.units.aliased_results.items()}

    def operands_held(self, unit: int) -> tuple[int, int]:
        """For how long a unit holds its operands: while it runs, or, where it only takes elements
        of them, until the last iteration ends."""
        found = self.units.units[unit]
        if self.units.border(found) == SLICE and found.loop is not None:
            return self.units.spans[found.loop]
        return (unit, unit + 1)

    def of_unit(
        self,
        unit: Unit,
        residency: UnitResidency,
        option: Residency,
        local_bytes: int,
        workspace: Sequence[int],
        workspace_again: Sequence[int],
    ) -> tuple[Interval, ...]:
        """Cases 3 to 6 for one option of a unit.

        `workspace` are the bytes of each buffer, `workspace_again` where the unit is recomputed.
        """
        starts = [unit.index]
        if option.recompute_at is not None:
            starts.append(option.recompute_at)
        intervals = [
            Interval(start, end, count * local_bytes)
            for start, end, count in self._lives(unit, residency, option)
            if end > start
        ]
        for t, sizes in zip(starts, (workspace, workspace_again), strict=False):
            intervals += [Interval(t, t + 1, size) for size in sizes]
        return tuple(intervals)

    def _lives(
        self, unit: Unit, residency: UnitResidency, option: Residency
    ) -> list[tuple[int, int, int]]:
        """When the unit's results exist, half-open, and how many elements of them."""
        if any(output in self.units.graph.program.host_values for output in unit.outputs):
            return []
        if self._is_fresh_result(unit):
            return [(0, self.horizon, 1)]
        border = self.units.border(unit)
        if border == SLICE:
            return [(u.time, u.time + 1, 1) for u in self.units.uses[unit.index]]
        if border == STACK:
            assert unit.loop is not None
            outer = self.units.graph.program.loops[unit.loop].parent
            start, _ = self.units.spans[unit.loop]
            return [(start, self._held(outer, max(option.end, unit.index)) + 1, 1)]
        if option.recompute_at is None:
            return list(self._life(unit, unit.index, option.end))
        first_end = max(residency.last_forward_use, unit.index)
        return [
            *self._life(unit, unit.index, first_end),
            *self._life(unit, option.recompute_at, option.end),
        ]

    def _life(self, unit: Unit, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """One computation's result, from `start` until the reader at `end`; cases 4, 7, 8, 9."""
        in_place = (unit.index, end) in self.overwritten
        program = self.units.graph.program
        depth = len(program.loops_around(unit.loop))
        around = program.loops_around(self.units.units[start].loop)[:depth]
        home = around[-1] if around else None
        first, behind = self.units.spans[home] if home is not None else (0, self.horizon)
        left = [k for k in around if not self._contains(k, end)]
        last = end if not left else max(self._uses_within(unit, start, behind), default=start)
        if unit.index in self.handed_on and start == unit.index:
            pass  # The place is that of the carry.
        elif self.units.border(unit) == CARRY:
            yield first, behind, 1
        else:
            yield start, max(self._held(home, last) + (0 if in_place else 1), start + 1), 1
        if left:
            count = prod(program.loops[k].length for k in left)
            outer = program.loops[left[0]].parent
            yield self.units.spans[left[0]][0], self._held(outer, end) + 1, count

    def _contains(self, loop: int, time: int) -> bool:
        start, end = self.units.spans[loop]
        return start <= time < end

    def _uses_within(self, unit: Unit, start: int, end: int) -> list[int]:
        return [u.time for u in self.units.uses[unit.index] if start <= u.time < end]

    def _held(self, loop: int | None, time: int) -> int:
        """Case 7: until when a value of `loop` is held for a reader at `time`."""
        around = self.units.graph.program.loops_around
        chain, depth = around(self.units.units[time].loop), len(around(loop))
        return time if len(chain) <= depth else self.units.spans[chain[depth]][1] - 1

    def _is_fresh_result(self, unit: Unit) -> bool:
        """Case 3; a unit with several results counts if any of them is one."""
        results = self.units.graph.program.result_values
        return any(o in results and o not in self.units.aliased_results for o in unit.outputs)


def _handed_on(units: UnitGraph) -> Iterator[int]:
    """Case 9: the units whose result takes the place of what the iteration started from."""
    for loop in units.graph.program.loops:
        for carry in loop.carries:
            start, producer = units.producer.get(carry.current), units.producer.get(carry.next)
            if start is None or producer is None or units.units[producer].loop != loop.index:
                continue
            own = units.units[producer]
            _, behind = units.spans[loop.index]
            reads = [u.time for u in units.uses[start] if u.time < behind]
            if own.outputs == (carry.next,) and max(reads, default=-1) <= producer:
                yield producer


def _overwrites(units: UnitGraph, unit: Unit, target: str) -> int | None:
    """The unit whose result `unit` may overwrite. There is one place to write to: of several, the
    one whose result it reads latest of all readers, and of these the neighbour."""
    if any(output in units.aliased_results for output in unit.outputs):
        return None
    values = overwritable(units.graph, unit)
    if target == "cpu":
        values += overwritable_by_operand(units.graph, unit)
    found = [
        producer.index
        for _, producer in temporaries(units, unit, values)
        if producer.index == unit.index - 1 or is_of_library(units.graph, producer)
    ]
    return min(found, key=lambda p: (units.uses[p][-1].time, -p), default=None)


def temporaries(
    units: UnitGraph, reader: Unit, values: Iterable[int]
) -> Iterator[tuple[int, Unit]]:
    """Those of `values` that are temporaries of the body in which they are read, each with the unit
    that yields just this value."""
    for value in values:
        producer = _local_producer(units, reader, value)
        if producer is not None:
            yield value, units.units[producer]


def _local_producer(units: UnitGraph, reader: Unit, value: int) -> int | None:
    producer = units.producer.get(value)
    if producer is None or value in units.graph.program.result_values:
        return None
    unit = units.units[producer]
    is_inside = unit.loop == reader.loop and units.border(unit) is None
    return producer if is_inside and len(unit.outputs) == 1 else None
