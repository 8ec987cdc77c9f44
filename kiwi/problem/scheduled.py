"""What a schedule of units holds, and how long its recomputation takes.

Any schedule: units in any valid order, each computed once or more often, under one sharding
strategy each. Sizes are those of `kiwi.problem.unit_memory` and `kiwi.problem.copies`, live ranges
those of `kiwi.memory.live_ranges`, as in the joint problem.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kiwi.memory.loop_bodies import OperandRead
from kiwi.memory.runs import ScheduledRuns
from kiwi.memory.timeline import Buffer, Timeline
from kiwi.problem.build import PlanningProblem
from kiwi.problem.copies import CopyOption
from kiwi.problem.solved import Solved
from kiwi.problem.unit_memory import unit_memory
from kiwi.solver.schedule import Schedule


@dataclass(frozen=True)
class Scheduled:
    """The buffers of a schedule. `times[u]`: of the points of time at which unit u runs the one at
    which most is alive; empty where each unit has the point of its own number."""

    timeline: Timeline
    times: tuple[int, ...] = ()


def scheduled(chosen: PlanningProblem, schedule: Schedule) -> Scheduled:
    """The buffers of a valid schedule; `chosen` has one option for each node, of which the
    residencies do not matter."""
    runs = ScheduledRuns(chosen.units, schedule.steps, chosen.rules.overwritable)
    timeline = Timeline(tuple(_buffers(chosen, runs)), runs.ranges.horizon)
    if runs.shares_points:
        return Scheduled(timeline)
    curve = timeline.curve_bytes
    points = ([runs.points[step] for step in steps] for steps in runs.steps_of)
    return Scheduled(timeline, tuple(max(own, key=curve.__getitem__) for own in points))


def _buffers(chosen: PlanningProblem, runs: ScheduledRuns) -> Iterator[Buffer]:
    units, ranges = chosen.units, runs.ranges
    for source in chosen.sources:
        local_bytes = chosen.local_bytes(source.value, source.shardings[0])
        yield from ranges.of_argument(source.value, local_bytes)
    for unit, node in zip(units.units, chosen.unit_nodes, strict=True):
        memory = unit_memory(units, unit, node.strategies[0], chosen.rules, chosen.mesh.size)
        yield from memory.buffers(ranges, unit, runs.of_unit(unit.index))

    def again(unit: int, _: CopyOption) -> Sequence[int]:
        return runs.again(unit)

    for copy in chosen.copies:
        copied_bytes = chosen.copied_bytes
        yield from copy.buffers(copy.options[0], copied_bytes, ranges, chosen.copies, again)


def again_seconds(solved: Solved) -> tuple[float, ...]:
    """For each unit the time of one more computation: its own, that of its collectives, and the
    resharding of its operands."""
    pairs = zip(solved.choices, read_resharding_seconds(solved), strict=True)
    return tuple(s.again_seconds + s.communication_seconds + reading for (s, _), reading in pairs)


def read_resharding_seconds(solved: Solved) -> tuple[float, ...]:
    """For each unit the time to reshard its operands once more, in all iterations together; those
    that are kept then are not."""
    units = solved.problem.units
    found = []
    for unit, (strategy, _) in zip(units.units, solved.choices, strict=True):
        seconds = 0.0
        pairs = zip(unit.rule.reads, strategy.reads, strict=True)
        for number, ((value, _), wanted) in enumerate(pairs):
            if OperandRead(unit.index, number, is_again=True) in solved.kept:
                continue
            operand = solved.problem.operand(unit, value)
            seconds += float(operand.seconds_once([solved.layouts[value]], [wanted])[0, 0])
        found.append(units.operand_trips(unit) * seconds)
    return tuple(found)
