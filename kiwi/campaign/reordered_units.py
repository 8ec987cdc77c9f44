"""Orders of a plan's units in which XLA's heap wastes less.

The waste of XLA's heap depends on the order of the units (`kiwi.memory.order_search`). Unlike a
lower limit, another order costs no time of the step.

1. Each buffer of the plan lives from the unit that yields it to the last unit that reads it. Units
   move together with the recomputations before them. An opened loop moves as a whole. A unit moves
   with the unit before it if XLA may fuse the earlier unit into the later one, or if the later unit
   may write over the earlier one's result (`kiwi.memory.live_ranges`).
2. Units follow their operands. Readers of a first computation precede its recomputation. Readers of
   a donated argument precede its update. Units with effects, and readers of kept copies, keep their
   order.
3. The best order becomes the order of the units themselves. The plan is then estimated like any
   other, and its heap is the one that the search has found.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.units import UnitGraph
from kiwi.memory.heap import split
from kiwi.memory.live_ranges import LiveRanges, overwritten_pairs
from kiwi.memory.order_search import (
    MovingBuffer,
    Steps,
    better_order,
    least_alive_bytes,
    needed_bytes,
)
from kiwi.memory.residency import Residency, last_use, with_life
from kiwi.memory.timeline import Buffer
from kiwi.problem.build import KeptCopies, PlanningProblem, UnitNode
from kiwi.problem.operands import Operands
from kiwi.problem.solved import Solved
from kiwi.problem.translation import Choices
from kiwi.targets.registry import regrouped


@dataclass(frozen=True, eq=False)
class Ordered:
    """A solution with its units in some order.

    - `planning`: the problem with units in this order. Each node has only the solution's option.
    - `kept`: the copies that are kept.
    """

    planning: PlanningProblem
    kept: KeptCopies

    @classmethod
    def given(cls, solved: Solved) -> "Ordered":
        """Returns a solution in the order of its problem."""
        return cls(solved.restricted, solved.kept)

    @functools.cached_property
    def steps(self) -> Steps:
        """The units as steps whose order may change."""
        return _Moving(self.planning, self.kept).steps()

    @property
    def solved(self) -> Solved:
        """The only solution of `planning`."""
        return Solved(self.planning, (0,) * len(self.planning.problem.nodes), self.kept)

    @property
    def needed_bytes(self) -> int:
        """The predicted bytes of XLA's heap in this order."""
        return needed_bytes(self.steps)

    def another(self, limit_bytes: int, aim_bytes: int, seed: int) -> "Ordered | None":
        """Returns the solution in another order that needs less memory than this order, or no more
        than `aim_bytes`.

        Returns None if no such order was found, or if every order needs more than `aim_bytes`.

        - `limit_bytes`: the largest number of live bytes in the other order.
        - `seed`: the seed of the search.
        """
        if least_alive_bytes(self.steps) > aim_bytes:
            return None
        anew = self.needed_bytes <= aim_bytes
        runs = better_order(self.steps, limit_bytes, aim_bytes, seed, anew=anew)
        if runs == tuple(range(len(self.steps.runs))):
            return None
        starts = [0, *accumulate(self.steps.runs)]
        return self.ordered([unit for run in runs for unit in range(starts[run], starts[run + 1])])

    def ordered(self, order: Sequence[int]) -> "Ordered":
        """Returns the solution with its units in another order. `order[k]` is the unit at position
        k."""
        place = {unit: k for k, unit in enumerate(order)}
        before = self.planning.units
        units = tuple(replace(before.units[unit], index=k) for k, unit in enumerate(order))
        graph = replace(before, units=units)
        again = {place[unit]: place[at] for unit, at in _recomputed_at(self.planning).items()}
        nodes = []
        for unit, times in zip(units, _readings(graph, again), strict=True):
            end = max((last_use(graph, unit), *times))
            life = with_life(graph, unit, [Residency(again.get(unit.index), end)])
            strategies = self.planning.unit_nodes[order[unit.index]].strategies
            nodes.append(UnitNode(unit.index, strategies, life))
        kept = frozenset(read._replace(unit=place[read.unit]) for read in self.kept)
        kernels = regrouped(self.planning.kernels, graph)
        planning = replace(
            self.planning,
            kernels=kernels,
            unit_nodes=tuple(nodes),
            copies=(),
            operands=Operands(kernels, self.planning.mesh),
        )
        none = (0,) * (len(planning.sources) + len(nodes))
        return Ordered(planning.restricted(none, kept), kept)


def reformulated(
    planning: PlanningProblem,
    solution: Sequence[int],
    units: UnitGraph,
    formulate: Callable[[tuple[tuple[Residency, ...], ...]], PlanningProblem],
) -> tuple[PlanningProblem, tuple[int, ...]]:
    """Returns the problem of a plan whose units are in another order, and the plan's solution of
    that problem.

    - `planning`, `solution`: the problem and its solution in the order of the program.
    - `units`: the units in the plan's order.
    - `formulate`: returns the problem in the plan's order in which each unit is also offered these
      residencies.
    """
    number = {unit.root: unit.index for unit in planning.units.units}
    order = [number[unit.root] for unit in units.units]
    chosen = Ordered.given(Solved(planning, solution)).ordered(order).solved
    formulated = formulate(tuple(node.residency.options for node in chosen.problem.unit_nodes))
    same = Choices.of(chosen.problem, chosen.solution).solution_of(formulated)
    # In another order, another strategy may dominate the plan's, so that it is not offered.
    return (chosen.problem, tuple(chosen.solution)) if same is None else (formulated, same)


def _recomputed_at(planning: PlanningProblem) -> dict[int, int]:
    """Returns, for each recomputed unit, the unit before which it is recomputed."""
    recompute_at = {
        node.unit: node.residency.options[0].recompute_at for node in planning.unit_nodes
    }
    return {unit: at for unit, at in recompute_at.items() if at is not None}


def _readings(units: UnitGraph, again: Mapping[int, int]) -> list[list[int]]:
    """Returns, for each unit, the ascending times at which its result is read, by first
    computations and by recomputations. `again`: as `_recomputed_at` returns it."""
    readings = []
    for unit, uses in enumerate(units.uses):
        readers = (use.reader for use in uses if use.reader is not None)
        times = {use.time for use in uses} | {
            again[reader] for reader in readers if reader in again
        }
        readings.append(sorted(times - {unit}))
    return readings


class _Moving:
    """Describes the units of a problem as steps that may move: their buffers, the runs of units
    that move together, and the pairs whose order is fixed."""

    def __init__(self, planning: PlanningProblem, kept: KeptCopies) -> None:
        self._planning, self._kept = planning, kept
        self._graph, self._units = planning.units, planning.units.units
        self._ranges = LiveRanges.of(planning.units)
        self._again = _recomputed_at(planning)
        self._readings = _readings(planning.units, self._again)
        self._overwritten = overwritten_pairs(planning.units, planning.kernels.overwritable)

    def steps(self) -> Steps:
        """Returns all units as steps."""
        count = len(self._units)
        constant, heap = split(self._planning.buffers, count, self._graph)
        starts = [unit for unit in range(count) if not unit or not self._is_tied(unit)]
        runs = tuple(behind - start for start, behind in pairwise([*starts, count]))
        precedes = frozenset(
            (earlier, later) for earlier, later in self._precedes() if earlier != later
        )
        buffers = tuple(moving for buffer in heap for moving in self._moving(buffer))
        return Steps(runs, precedes, buffers, constant_bytes=constant)

    def _is_tied(self, unit: int) -> bool:
        """Whether a unit must directly follow the unit before it."""
        loops = [self._ranges.loops[index][:1] for index in (unit - 1, unit)]
        if loops[0] and loops[0] == loops[1]:
            return True
        if (unit - 1, unit) in self._overwritten:
            return True
        former = self._units[unit - 1]
        is_read = not set(former.outputs).isdisjoint(self._units[unit].reads)
        return is_read and is_map(self._graph.graph, former.root)

    def _precedes(self) -> Iterator[tuple[int, int]]:
        """Yields pairs of units whose order is fixed, the earlier unit first."""
        for unit, times in enumerate(self._readings):
            again = self._again.get(unit, len(self._units))
            yield from ((unit, time) for time in times if time < again)
            if again < len(self._units):
                yield unit, again
                yield from ((time, again) for time in times if time < again)
                yield from ((again, time) for time in times if time > again)
        producer, readers = self._graph.producer, self._graph.readers
        for unit in self._units:
            yield from ((producer[read], unit.index) for read in unit.reads if read in producer)
        for result, argument in self._graph.aliased_results.items():
            for reader in readers.get(argument, ()):
                times = (reader, self._again.get(reader, reader))
                yield from ((time, producer[result]) for time in times)
        equations = self._graph.graph.program.equations
        yield from pairwise(
            moving.index for moving in self._units if equations[moving.root].has_effects
        )
        for value in {self._units[kept.unit].rule.reads[kept.number][0] for kept in self._kept}:
            again = (self._again[index] for index in readers[value] if index in self._again)
            yield from pairwise(sorted({*readers[value], *again}))

    def _moving(self, buffer: Buffer) -> list[MovingBuffer]:
        """Returns a buffer of the plan as buffers that move with their units. A buffer held from
        the start of the step counts as several buffers of the result's size (`Kernel.held_early`).
        """
        unit, end, size = buffer.index, buffer.end, buffer.bytes
        if buffer.kind == "copy":
            return [self._copy(buffer)]
        if buffer.start > 0 or unit == 0:
            return [self._result(buffer)]
        if end == unit:  # The result is written there.
            return [MovingBuffer(size, -1, (unit,), unit)]
        result_bytes = self._planning.unit_nodes[unit].strategies[0].result_bytes
        count = max(1, size // result_bytes if result_bytes and size % result_bytes == 0 else 0)
        return [MovingBuffer(size // count, -1, (max(unit, end - 1),))] * count

    def _copy(self, buffer: Buffer) -> MovingBuffer:
        """Returns the buffer of a copy, which lives while the unit that makes it runs, or from one
        reader to the next if it is kept."""
        maker, start, last = buffer.index, buffer.start, buffer.end - 1
        if start in (maker, self._again.get(maker)) or start == 0:
            return MovingBuffer(buffer.bytes, start, (last,))
        return MovingBuffer(buffer.bytes, start - 1, (last,), is_behind=True)

    def _result(self, buffer: Buffer) -> MovingBuffer:
        """Returns the buffer of a unit's result or workspace."""
        start, end, overwriter = buffer.start, buffer.end, buffer.overwritten_by
        loop, times = self._units[buffer.index].loop, self._readings[buffer.index]
        reading_times = (time for time in times if start < time < end or time == overwriter)
        # A reader inside a loop holds a value from outside until the last iteration ends.
        readers = {self._ranges.until(loop, time) for time in reading_times}
        if overwriter < 0 and end - 1 > start:
            readers.add(end - 1)
        return MovingBuffer(buffer.bytes, start, tuple(sorted(readers)), overwriter)
