"""The memory of a schedule of units, and the time of its recomputation.

A schedule runs units in any valid order, each at least once, under one sharding strategy each. As
in the joint problem, `kiwi.problem.unit_memory` and `kiwi.problem.copies` give the sizes of
buffers, and `kiwi.memory.live_ranges` their live ranges.

Computations start, and their results are read, at **points of time** (`ScheduledRuns`). The
schedule of a solution of the joint problem (`is_of_residencies`) has one point of time per unit, as
in that problem: units that are recomputed for one reader share the reader's point. In any other
schedule each step has a point of its own.
"""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, pairwise

from kiwi.hlo.in_place import is_of_library
from kiwi.hlo.loops import EXITS, SLICE
from kiwi.hlo.units import UnitGraph
from kiwi.memory import live_ranges
from kiwi.memory.live_ranges import LiveRanges, Overwritable, Run, overwritable_temporaries
from kiwi.memory.loop_bodies import OperandRead, dataflow, loops_of_steps
from kiwi.memory.timeline import Buffer, Timeline
from kiwi.problem.build import PlanningProblem
from kiwi.problem.copies import CopyOption
from kiwi.problem.solved import Solved
from kiwi.problem.unit_memory import lent_again, unit_memory
from kiwi.solver.schedule import Schedule


class ScheduledRuns:
    """The runs of a valid schedule, in which each unit is computed at least once.

    - `points[k]`: the point of time of step k.
    - `ranges`: the live ranges over these points.
    - `steps_of[u]`: the steps that compute unit u, in order.
    - `shares_points`: whether there is one point of time per unit, which recomputed units share.
    - `fetched`: the units whose later steps are fetches from the host, which read nothing from the
      device's memory.
    """

    def __init__(
        self,
        units: UnitGraph,
        steps: Sequence[int],
        overwritable: Overwritable,
        fetched: Set[int] = frozenset(),
    ) -> None:
        self._units, self._steps, self._overwritable = units, steps, overwritable
        self._fetched = fetched
        self.steps_of: list[list[int]] = [[] for _ in units.units]
        for step, unit in enumerate(steps):
            self.steps_of[unit].append(step)
        self.shares_points = is_of_residencies(units, steps)
        if self.shares_points:
            is_first = [self.steps_of[unit][0] == step for step, unit in enumerate(steps)]
            self.points = list(accumulate(is_first, initial=0))[:-1]
            self.ranges = LiveRanges.of(units)
        else:
            self.points = list(range(len(steps)))
            first_run = [steps_of_unit[0] for steps_of_unit in self.steps_of]
            self.ranges = LiveRanges(units, tuple(loops_of_steps(units, steps)), first_run)

    def of_unit(self, unit: int) -> tuple[Run, ...]:
        """The runs of a unit, in order."""
        return tuple(
            Run(
                self.points[step],
                self._last_use(step),
                self._uses[step],
                self._overwritten_by.get(step, -1),
                self.shares_points and number > 0,
                is_fetched=self._is_fetch(step),
                is_fused=self.shares_points and number > 0 and self._is_fused(unit, step),
            )
            for number, step in enumerate(self.steps_of[unit])
        )

    def _is_fetch(self, step: int) -> bool:
        unit = self._steps[step]
        return unit in self._fetched and step != self.steps_of[unit][0]

    def _is_fused(self, unit: int, step: int) -> bool:
        point = self.points[step]
        is_pair = (unit, point) in live_ranges.fused_pairs(self._units)
        return is_pair and not self._is_fetch(step) and self._uses[step] == (point,)

    def again(self, unit: int) -> tuple[int, ...]:
        """The points of time at which a unit is recomputed."""
        return tuple(
            self.points[step] for step in self.steps_of[unit][1:] if not self._is_fetch(step)
        )

    @functools.cached_property
    def _source(self) -> tuple[dict[int, int], ...]:
        return dataflow(self._units, self._steps, fetched=self._fetched).source

    @functools.cached_property
    def _uses(self) -> list[tuple[int, ...]]:
        """The points of time at which the results of each step are read, sorted."""
        readers: list[set[int]] = [set() for _ in self._steps]
        for step, sources in enumerate(self._source):
            if self._is_fetch(step):
                continue
            for source in sources.values():
                if source >= 0:
                    readers[source].add(step)
        times_of_step: list[tuple[int, ...]] = [()] * len(self._steps)
        for step in reversed(range(len(self._steps))):  # Readers come after the step.
            times = {
                time
                for reader in readers[step]
                for time in self._read_by(reader, times_of_step[reader])
            }
            times_of_step[step] = tuple(sorted(times | set(self._read_at_ends(step))))
        return times_of_step

    def _read_by(self, reader: int, uses: Sequence[int]) -> Iterator[int]:
        """Yields the points of time at which a reader reads, as in `UnitGraph.uses`: a reader of an
        element of a stack reads the stack. `uses`: when the reader's own results are read."""
        unit = self._units.units[self._steps[reader]]
        border, entered = self._units.border(unit), self._units.entered_while(unit)
        if border == SLICE:
            yield from uses
        if entered is not None:
            yield self.ranges.spans[entered][0] - 1
        elif border not in EXITS:
            yield self.points[reader]

    def _read_at_ends(self, step: int) -> Iterator[int]:
        """Yields the points of time at which the end of an iteration, or of the training step,
        reads the results of a step of the schedule."""
        unit, program = self._units.units[self._steps[step]], self._units.graph.program
        behind = [later_step for later_step in self.steps_of[unit.index] if later_step > step]
        for output in unit.outputs:
            for loop in program.next_values.get(output, ()):
                time = self.ranges.spans[loop][1] - 1 if loop in self.ranges.spans else -1
                if time >= self.points[step] and not any(
                    self.points[later_step] <= time for later_step in behind
                ):
                    yield time
            if output in program.result_values and not behind:
                yield self.ranges.horizon - 1

    def _last_use(self, step: int) -> int:
        return max(self._uses[step], default=self.points[step])

    @functools.cached_property
    def _overwritten_by(self) -> dict[int, int]:
        """For each step whose result is overwritten, the unit that writes its own result over it,
        as its last reader."""
        victims = ((self._victim(step), unit) for step, unit in enumerate(self._steps))
        return {step: unit for step, unit in victims if step is not None}

    def _victim(self, step: int) -> int | None:
        """Returns the latest step whose result this step writes over; None if there is none. The
        overwritten step is the first run of its unit at the point before, or a library call.
        Nothing reads its result later. A recomputation writes over nothing."""
        unit = self._units.units[self._steps[step]]
        if self.steps_of[unit.index][0] != step:
            return None
        candidates = []
        for value, producer in overwritable_temporaries(self._units, unit, self._overwritable):
            source = self._source[step][value]
            is_before = self.points[source] == self.points[step] - 1
            is_first = self.steps_of[producer.index][0] == source
            may_be = (is_before and is_first) or is_of_library(self._units.graph, producer)
            if may_be and self._last_use(source) == self.points[step]:
                candidates.append(source)
        return max(candidates, default=None)


def is_of_residencies(units: UnitGraph, steps: Sequence[int]) -> bool:
    """Returns whether a schedule can be a solution of the joint problem.

    Such a schedule runs the units in order, and recomputes each at most once. The units that it
    recomputes for a unit stand just before that unit, sorted by depth of loops and then by index.
    """
    around, count = units.graph.program.loops_around, len(units.units)
    runs = Counter(steps)
    if len(runs) < count or max(runs.values(), default=0) > 2:
        return False
    again: list[tuple[int, int]] = []
    reached = 0
    for unit in steps:
        if unit == reached:
            reached, again = reached + 1, []
        elif unit > reached:
            return False
        else:
            again.append((len(around(units.units[unit].loop)), unit))
            if any(earlier >= later for earlier, later in pairwise(again)):
                return False
    return not again


@dataclass(frozen=True)
class Scheduled:
    """The buffers of a schedule. `times[u]`: the point of time with the most live bytes among the
    points at which unit u runs. `times` is empty if each unit's point is its own number."""

    timeline: Timeline
    times: tuple[int, ...] = ()


def scheduled(
    chosen: PlanningProblem, schedule: Schedule, fetched: Set[int] = frozenset()
) -> Scheduled:
    """Returns the buffers of a valid schedule. `chosen` has one option for each node; residencies
    are ignored. `fetched`: as in `ScheduledRuns`."""
    runs = ScheduledRuns(chosen.units, schedule.steps, chosen.kernels.overwritable, fetched)
    timeline = Timeline(tuple(_buffers(chosen, runs)), runs.ranges.horizon)
    if runs.shares_points:
        return Scheduled(timeline)
    curve = timeline.curve_bytes
    points = ([runs.points[step] for step in steps] for steps in runs.steps_of)
    return Scheduled(
        timeline, tuple(max(unit_points, key=curve.__getitem__) for unit_points in points)
    )


def _buffers(chosen: PlanningProblem, runs: ScheduledRuns) -> Iterator[Buffer]:
    units, ranges = chosen.units, runs.ranges
    for source in chosen.sources:
        local_bytes = chosen.local_bytes(source.value, source.shardings[0])
        yield from ranges.of_argument(source.value, local_bytes)
    for unit, node in zip(units.units, chosen.unit_nodes, strict=True):
        memory = unit_memory(chosen.kernels, unit, node.strategies[0])
        yield from memory.buffers(ranges, unit, runs.of_unit(unit.index))

    for_others = (
        (recomputed, runs.again(recomputed.index))
        for recomputed in units.units
        if runs.shares_points
    )
    yield from lent_again(chosen.kernels, for_others).values()

    def again(unit: int, _: CopyOption) -> Sequence[int]:
        return runs.again(unit)

    for copy in chosen.copies:
        copied_bytes = chosen.copied_bytes
        yield from copy.buffers(copy.options[0], copied_bytes, ranges, chosen.copies, again)


def again_seconds(solved: Solved) -> tuple[float, ...]:
    """Returns, for each unit, the seconds of one more computation: the computation itself, the
    strategy's collectives, and the resharding of operands."""
    pairs = zip(solved.choices, read_resharding_seconds(solved), strict=True)
    return tuple(
        strategy.again_seconds + strategy.communication_seconds + reading
        for (strategy, _), reading in pairs
    )


def read_resharding_seconds(solved: Solved) -> tuple[float, ...]:
    """Returns, for each unit, the seconds to reshard its operands once more, over all iterations.
    Kept copies are not resharded again."""
    units = solved.problem.units
    seconds_of_reads = []
    for unit, (strategy, _) in zip(units.units, solved.choices, strict=True):
        seconds = 0.0
        pairs = zip(unit.rule.reads, strategy.reads, strict=True)
        for number, ((value, _), wanted) in enumerate(pairs):
            if OperandRead(unit.index, number, is_again=True) in solved.kept:
                continue
            operand = solved.problem.operand(unit, value)
            seconds += float(operand.seconds_once([solved.layouts[value]], [wanted])[0, 0])
        seconds_of_reads.append(units.operand_trips(unit) * seconds)
    return tuple(seconds_of_reads)
