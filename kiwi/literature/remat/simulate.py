"""The one account of a schedule: is it valid, what does it need, how long does it take.

Every number that Kiwi reports about a schedule of a `RematGraph` comes from this module, and so do
bounds on memory that hold for every schedule of a graph.

**Memory model.** Each computation of a value starts a live range, which ends at the last reader
before the value is computed again (or at the computation itself, if there is none; or at the end of
the step, for the last computation of a result). While step `k` runs, memory holds every live range
that contains `k`, the temporary memory of the operator, and the inputs of the graph.
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
    """Value `value` is live during the steps `first` to `last`, both included."""

    value: int
    first: int
    last: int


@dataclass(frozen=True)
class Simulation:
    """The memory of a valid schedule during each step and at most, and the time of all of them."""

    peak_bytes: int
    compute_seconds: float
    memory_bytes: tuple[int, ...]


def violations(graph: RematGraph, schedule: Schedule) -> list[str]:
    """Reasons for which `schedule` cannot be executed on `graph`; empty if it can."""
    found: list[str] = []
    computed: set[int] = set()
    written = {value for value, producer in enumerate(graph.producer) if producer < 0}
    for step, index in enumerate(schedule.steps):
        if not 0 <= index < len(graph.operators):
            found.append(f"step {step} computes unknown operator {index}")
            continue
        operator = graph.operators[index]
        found += [
            f"step {step} ({operator.name}) reads {graph.values[value].name} before it is computed"
            for value in operator.inputs
            if value not in written
        ]
        if index in computed and not operator.recomputable:
            found.append(f"step {step} computes {operator.name} again, which may run only once")
        written.update(operator.outputs)
        computed.add(index)
    missing = set(range(len(graph.operators))) - computed
    return found + [f"{graph.operators[k].name} is never computed" for k in sorted(missing)]


def live_ranges(
    graph: RematGraph,
    schedule: Schedule,
    before: Set[int] = frozenset(),
    after: Set[int] | None = None,
) -> list[LiveRange]:
    """The live ranges of a valid schedule, or of a part of one, in the order they end.

    `before`: values that are live when it begins; `after`: values that live on when it ends, the
    results of the graph by default.
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
    """The memory of live ranges during each of `count` steps."""
    change_bytes = [0] * (count + 2)
    for live in ranges:
        size_bytes = graph.values[live.value].size_bytes
        change_bytes[live.first] += size_bytes
        change_bytes[live.last + 1] -= size_bytes
    return list(accumulate(change_bytes[:count]))


def memory_bytes(
    graph: RematGraph,
    schedule: Schedule,
    before: Set[int] = frozenset(),
    after: Set[int] | None = None,
    hidden: Set[int] = frozenset(),
) -> tuple[int, ...]:
    """Memory during each step beside the inputs of the graph; values in `hidden` do not count.

    `before`, `after`: as of `live_ranges`.
    """
    ranges = live_ranges(graph, schedule, before, after)
    held = held_bytes(graph, (r for r in ranges if r.value not in hidden), len(schedule.steps))
    operators = (graph.operators[index] for index in schedule.steps)
    return tuple(live + each.temporary_bytes for live, each in zip(held, operators, strict=True))


def simulate(graph: RematGraph, schedule: Schedule) -> Simulation:
    """Validity, peak and time of `schedule`; raises `kiwi.errors.InvalidProblemError` if the
    schedule cannot be executed."""
    found = violations(graph, schedule)
    if found:
        raise InvalidProblemError(
            f"the schedule is not valid: {found[0]}" + (", and more" if found[1:] else ""),
            topic=topics.SCHEDULE,
        )
    memory = tuple(graph.resident_bytes + each for each in memory_bytes(graph, schedule))
    peak_bytes = max(memory, default=graph.resident_bytes)
    return Simulation(peak_bytes, graph.seconds_of(schedule.steps), memory)


@dataclass(frozen=True)
class WorkingSet:
    """The memory that one operator (or the end of the step, `operator` -1) cannot do without.

    Its inputs, outputs and temporary memory, and the inputs of the graph.
    """

    operator: int
    size_bytes: int


def largest_working_set(graph: RematGraph) -> WorkingSet:
    """The largest working set: a lower bound on the peak of every schedule."""

    def working_set(operator: int, values: Iterable[int], temporary_bytes: int) -> WorkingSet:
        computed_bytes = graph.bytes_of(v for v in values if graph.producer[v] >= 0)
        return WorkingSet(operator, computed_bytes + temporary_bytes + graph.resident_bytes)

    sets = [
        working_set(k, each.inputs + each.outputs, each.temporary_bytes)
        for k, each in enumerate(graph.operators)
    ]
    return max([*sets, working_set(-1, graph.results, 0)], key=lambda each: each.size_bytes)


def order_peak_bytes(graph: RematGraph) -> int:
    """The peak of the given order, without recomputation."""
    return simulate(graph, Schedule(graph.order)).peak_bytes


def evenly(low: int, high: int, count: int) -> list[int]:
    """`count` integers from above `low` up to `high`, without repetition."""
    return sorted({low + (high - low) * (k + 1) // count for k in range(count)})


def budget_from_share(graph: RematGraph, share: float) -> int:
    """`share` of the given order's peak in bytes, rounded up; raises
    `kiwi.errors.InvalidArgumentError` unless `share` is positive."""
    if not share > 0:
        raise InvalidArgumentError(
            f"the share of the peak must be positive, not {share}", topic=topics.OUT_OF_RANGE
        )
    # 0.7 * peak in floating point may fall just above an integer: round to 1e-9 shares first.
    return math.ceil(round(share * 10**9) * order_peak_bytes(graph) / 10**9)
