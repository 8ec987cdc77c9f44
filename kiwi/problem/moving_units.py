"""The units of a plan as steps that may change places (`kiwi.memory.order_search`).

1. Each buffer of the plan is there from the unit that yields it to the last unit that reads it.
   Units move with what is computed again before them. An opened loop moves as a whole, and a unit
   with the one before it that XLA may fuse into it or that it may write over
   (`kiwi.memory.live_ranges`).
2. Units come behind what they read, readers of a first computation before the second one, readers
   of a donated argument before its update, effects and readers of kept copies in their order.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from kiwi.hlo.fusion import is_map
from kiwi.hlo.units import UnitGraph
from kiwi.memory.heap import split
from kiwi.memory.live_ranges import overwritten_pairs
from kiwi.memory.order_search import MovingBuffer, Steps
from kiwi.memory.timeline import Buffer
from kiwi.problem.build import KeptCopies, PlanningProblem


def steps_of_units(planning: PlanningProblem, kept: KeptCopies) -> Steps:
    """The units of a problem in which nothing is left to choose, as steps."""
    return _Units(planning, kept).steps()


def recomputed_at(planning: PlanningProblem) -> dict[int, int]:
    """The unit before which each unit is computed again, if it is."""
    found = {node.unit: node.residency.options[0].recompute_at for node in planning.unit_nodes}
    return {unit: at for unit, at in found.items() if at is not None}


def readings(units: UnitGraph, again: Mapping[int, int]) -> list[list[int]]:
    """For each unit the times at which its result is used, also by what is computed again."""
    found = []
    for unit in units.units:
        uses = units.uses[unit.index]
        readers = (use.reader for use in uses if use.reader is not None)
        times = {use.time for use in uses} | {again[r] for r in readers if r in again}
        found.append(sorted(times - {unit.index}))
    return found


class _Units:
    """Which units are tied to each other, and what they hold."""

    def __init__(self, planning: PlanningProblem, kept: KeptCopies) -> None:
        self._planning, self._kept = planning, kept
        self._graph = planning.units
        self._count = len(planning.units.units)
        self._again = recomputed_at(planning)
        self._readings = readings(planning.units, self._again)
        self._overwritten = overwritten_pairs(planning.units, planning.rules.overwritable)

    def steps(self) -> Steps:
        """All of them."""
        constant, heap = split(self._planning.buffers, self._count, self._graph)
        precedes = frozenset((a, b) for a, b in self._precedes() if a != b)
        buffers = tuple(moving for buffer in heap for moving in self._moving(buffer))
        return Steps(tuple(self._runs()), precedes, buffers, constant_bytes=constant)

    def _runs(self) -> Iterator[int]:
        length = 0
        for unit in range(self._count):
            if unit and not self._is_tied(unit):
                yield length
                length = 0
            length += 1
        if length:
            yield length

    def _is_tied(self, unit: int) -> bool:
        """Whether a unit stays behind the one before it."""
        around = self._graph.graph.program.loops_around
        loops = [around(self._graph.units[u].loop)[:1] for u in (unit - 1, unit)]
        if loops[0] and loops[0] == loops[1]:
            return True
        if (unit - 1, unit) in self._overwritten:
            return True
        former = self._graph.units[unit - 1]
        is_read = not set(former.outputs).isdisjoint(self._graph.units[unit].reads)
        return is_read and is_map(self._graph.graph, former.root)

    def _precedes(self) -> Iterator[tuple[int, int]]:
        for unit, times in enumerate(self._readings):
            again = self._again.get(unit, self._count)
            yield from ((unit, time) for time in times if time < again)
            if again < self._count:
                yield unit, again
                yield from ((time, again) for time in times if time < again)
                yield from ((again, time) for time in times if time > again)
        producer = self._graph.producer
        for unit in self._graph.units:
            yield from ((producer[v], unit.index) for v in unit.reads if v in producer)
        yield from self._before_updates()
        yield from pairwise(self._with_effects())
        values = {self._graph.units[u].rule.reads[read][0] for u, read in self._kept}
        for value in sorted(values):
            yield from pairwise(self._graph.readers[value])

    def _before_updates(self) -> Iterator[tuple[int, int]]:
        for result, argument in self._graph.aliased_results.items():
            update = self._graph.producer[result]
            for reader in self._graph.readers.get(argument, ()):
                yield from ((t, update) for t in (reader, self._again.get(reader, reader)))

    def _with_effects(self) -> list[int]:
        equations = self._graph.graph.program.equations
        return [u.index for u in self._graph.units if equations[u.root].has_effects]

    def _moving(self, buffer: Buffer) -> list[MovingBuffer]:
        """A result, workspace or a copy; or, of what is held from the start, as many buffers of a
        result's size as that is (`Rules.held_from_start`)."""
        unit, end, size = buffer.index, buffer.end, buffer.bytes
        if buffer.kind == "copy":
            return [self._copy(buffer)]
        if buffer.start > 0 or unit == 0:
            return [self._result(buffer)]
        if end == unit:  # The result is written there.
            return [MovingBuffer(size, -1, (unit,), unit)]
        one = self._result_bytes(unit)
        count = max(1, size // one if one and size % one == 0 else 0)
        return [MovingBuffer(size // count, -1, (max(unit, end - 1),))] * count

    def _copy(self, buffer: Buffer) -> MovingBuffer:
        """A copy while its maker runs, or while it is kept from one reader to the next."""
        maker, start, last = buffer.index, buffer.start, buffer.end - 1
        if start in (maker, self._again.get(maker)) or start == 0:
            return MovingBuffer(buffer.bytes, start, (last,))
        return MovingBuffer(buffer.bytes, start - 1, (last,), is_behind=True)

    def _result(self, buffer: Buffer) -> MovingBuffer:
        unit, start, end, over = buffer.index, buffer.start, buffer.end, buffer.overwritten_by
        times = self._readings[unit]
        readers = {self._until(unit, t) for t in times if start < t < end or t == over}
        if over < 0 and end - 1 > start:
            readers.add(end - 1)
        return MovingBuffer(buffer.bytes, start, tuple(sorted(readers)), over)

    def _result_bytes(self, unit: int) -> int:
        return self._planning.unit_nodes[unit].strategies[0].result_bytes

    def _until(self, unit: int, time: int) -> int:
        """What reads from outside of a loop holds it until the last iteration ends."""
        around = self._graph.graph.program.loops_around
        chain = around(self._graph.units[time].loop)
        depth = len(around(self._graph.units[unit].loop))
        return time if len(chain) <= depth else self._graph.spans[chain[depth]][1] - 1
