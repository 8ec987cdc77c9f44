"""The only account of a schedule: whether it is valid, how much memory it needs, how long it takes.

Every number that Kiwi reports about a schedule of a `RematGraph` comes from this module, and so do
bounds on memory that hold for every schedule of a graph.

**Memory model.** Each computation of a value starts a live range. The live range ends at the last
reader before the value is computed again. Without a reader it ends at the computation itself. The
last live range of a result ends at the end of the step. While step `k` runs, memory holds every
live range that contains `k`, the temporary memory of the operator, and the inputs of the graph.
"""

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass
from itertools import accumulate

from kiwi.errors import InvalidArgumentError, InvalidProblemError
from kiwi.literature.remat.graph import RematGraph
from kiwi.messages import topics
from kiwi.solver.schedule import Schedule


@dataclass(frozen=True)
class LiveRange:
    """The fact that value `value` is live during the steps `first` to `last`, both included."""

    value: int
    first: int
    last: int


@dataclass(frozen=True)
class Simulation:
    """The memory of a valid schedule and its time.

    - `peak_bytes`: the largest memory.
    - `compute_seconds`: the total time of the steps.
    - `memory_bytes`: the memory during each step.
    """

    peak_bytes: int
    compute_seconds: float
    memory_bytes: tuple[int, ...]


def violations(graph: RematGraph, schedule: Schedule) -> list[str]:
    """Returns the reasons for which `schedule` cannot be executed on `graph`; empty if it can."""
    reasons: list[str] = []
    computed: set[int] = set()
    written = {value for value, producer in enumerate(graph.producer) if producer < 0}
    for step, index in enumerate(schedule.steps):
        if not 0 <= index < len(graph.operators):
            reasons.append(f"step {step} computes unknown operator {index}")
            continue
        operator = graph.operators[index]
        reasons += [
            f"step {step} ({operator.name}) reads {graph.values[value].name} before it is computed"
            for value in operator.inputs
            if value not in written
        ]
        if index in computed and not operator.recomputable:
            reasons.append(f"step {step} computes {operator.name} again, which may run only once")
        written.update(operator.outputs)
        computed.add(index)
    missing = set(range(len(graph.operators))) - computed
    return reasons + [f"{graph.operators[k].name} is never computed" for k in sorted(missing)]


def live_ranges(
    graph: RematGraph,
    schedule: Schedule,
    before: Set[int] = frozenset(),
    after: Set[int] | None = None,
) -> list[LiveRange]:
    """Returns the live ranges of a valid schedule, or of a part of one.

    Ranges that end because the value is computed again come first, in the order they end. `before`
    are values that are live when the part begins. `after` are values that are live beyond the end
    of the part, by default the results of the graph.
    """
    first, last = dict.fromkeys(before, 0), dict.fromkeys(before, 0)
    ended: list[LiveRange] = []
    for step, index in enumerate(schedule.steps):
        operator = graph.operators[index]
        for value in operator.inputs:
            last[value] = step
        for value in operator.outputs:
            if value in first:
                ended.append(LiveRange(value, first[value], last[value]))
            first[value] = last[value] = step
    end, kept = len(schedule.steps) - 1, graph.results if after is None else after
    for value, start in first.items():
        ended.append(LiveRange(value, start, end if value in kept else last[value]))
    return ended


def held_bytes(graph: RematGraph, ranges: Iterable[LiveRange], count: int) -> list[int]:
    """Returns the memory of the given live ranges during each of `count` steps, in bytes."""
    change_bytes = [0] * (count + 2)
    for live_range in ranges:
        size_bytes = graph.values[live_range.value].size_bytes
        change_bytes[live_range.first] += size_bytes
        change_bytes[live_range.last + 1] -= size_bytes
    return list(accumulate(change_bytes[:count]))


def memory_bytes(
    graph: RematGraph,
    schedule: Schedule,
    before: Set[int] = frozenset(),
    after: Set[int] | None = None,
    hidden: Set[int] = frozenset(),
) -> tuple[int, ...]:
    """Returns the memory during each step without the inputs of the graph, in bytes.

    `before` and `after` are as in `live_ranges`. Values in `hidden` do not count.
    """
    ranges = live_ranges(graph, schedule, before, after)
    held = held_bytes(
        graph,
        (live_range for live_range in ranges if live_range.value not in hidden),
        len(schedule.steps),
    )
    operators = (graph.operators[index] for index in schedule.steps)
    return tuple(
        live_bytes + operator.temporary_bytes
        for live_bytes, operator in zip(held, operators, strict=True)
    )


def simulate(graph: RematGraph, schedule: Schedule) -> Simulation:
    """Returns the peak and the time of `schedule`.

    Raises `kiwi.errors.InvalidProblemError` if the schedule cannot be executed.
    """
    reasons = violations(graph, schedule)
    if reasons:
        raise InvalidProblemError(
            f"the schedule is not valid: {reasons[0]}" + (", and more" if reasons[1:] else ""),
            topic=topics.SCHEDULE,
        )
    memory = tuple(
        graph.resident_bytes + step_bytes for step_bytes in memory_bytes(graph, schedule)
    )
    peak_bytes = max(memory, default=graph.resident_bytes)
    return Simulation(peak_bytes, graph.seconds_of(schedule.steps), memory)


@dataclass(frozen=True)
class WorkingSet:
    """The memory without which operator `operator` cannot run.

    It holds the operator's inputs, outputs and temporary memory, and the inputs of the graph.
    `operator` is -1 for the end of the step, which needs the results.
    """

    operator: int
    size_bytes: int


def largest_working_set(graph: RematGraph) -> WorkingSet:
    """Returns the largest working set, which is a lower bound on the peak of every schedule."""

    def working_set(operator: int, values: Iterable[int], temporary_bytes: int) -> WorkingSet:
        computed_bytes = graph.bytes_of(value for value in values if graph.producer[value] >= 0)
        return WorkingSet(operator, computed_bytes + temporary_bytes + graph.resident_bytes)

    sets = [
        working_set(k, operator.inputs + operator.outputs, operator.temporary_bytes)
        for k, operator in enumerate(graph.operators)
    ]
    return max([*sets, working_set(-1, graph.results, 0)], key=lambda largest: largest.size_bytes)


def order_peak_bytes(graph: RematGraph) -> int:
    """Returns the peak of the given order without recomputation, in bytes."""
    return simulate(graph, Schedule(graph.order)).peak_bytes


def evenly(low: int, high: int, count: int) -> list[int]:
    """Returns `count` evenly spaced integers above `low` and up to `high`, without repetition."""
    return sorted({low + (high - low) * (k + 1) // count for k in range(count)})


def budget_from_share(graph: RematGraph, share: float) -> int:
    """Returns `share` of the given order's peak in bytes, rounded up.

    Raises `kiwi.errors.InvalidArgumentError` unless `share` is positive.
    """
    if not share > 0:
        raise InvalidArgumentError(
            f"the share of the peak must be positive, not {share}", topic=topics.OUT_OF_RANGE
        )
    # 0.7 * peak in floating point may fall just above an integer: round to 1e-9 shares first.
    return math.ceil(round(share * 10**9) * order_peak_bytes(graph) / 10**9)
