"""The order of a schedule, changed so that XLA's heap wastes less.

A schedule is found for the sum of what is alive. XLA's heap needs more: free memory lies in pieces
(`kiwi.plan.packing`), under tight budgets up to 9 % of what is alive. And XLA may run a step before
the one in front of it (`kiwi.plan.fences`), while what both read is there: an MLP at 40 % held 13 %
more so. Many orders of the same computations have the same time and hardly another peak, but
another heap. So single steps are moved to random places between what they read and what reads
them, and stay there where what is needed does not grow.
"""

import itertools
import random
from collections.abc import Iterable, Sequence

from kiwi.plan.packing import packed_bytes
from kiwi.solver.problem import Interval
from kiwi.solver.remat import RematGraph, simulate
from kiwi.solver.remat.simulate import live_ranges
from kiwi.solver.schedule import Schedule

WORK = 500_000
"""Tries times steps: five seconds or less. Large graphs waste less, and get fewer tries."""
MOST_TRIES = 2000
AIM = 0.985
"""Share of the budget at which a heap is small enough: compiled ones are up to 1.5 % larger than
simulated, because neighbours may run in another order."""


def heap_bytes(graph: RematGraph, schedule: Schedule) -> int:
    """What XLA's heap needs for a schedule, with what is resident throughout."""
    buffers = [
        Interval(live.first, live.last + 1, graph.values[live.value].size_bytes)
        for live in live_ranges(graph, schedule)
        if graph.values[live.value].size_bytes
    ]
    for step, index in enumerate(schedule.steps):
        temporary_bytes = graph.operators[index].temporary_bytes
        if temporary_bytes:
            buffers.append(Interval(step, step + 1, temporary_bytes))
    return graph.resident_bytes + packed_bytes(buffers)


def swapped_bytes(graph: RematGraph, schedule: Schedule) -> list[int]:
    """The most that is alive should a step run before its neighbour, for each that does not read
    the neighbour's result."""
    memory = simulate(graph, schedule).memory_bytes
    ending: dict[int, list[int]] = {}
    for live in live_ranges(graph, schedule):
        if live.first != live.last - 1:
            ending.setdefault(live.last, []).append(live.value)
    steps = [graph.operators[index] for index in schedule.steps]
    found = []
    for place, (former, latter) in enumerate(itertools.pairwise(steps)):
        if not set(latter.inputs).isdisjoint(former.outputs):
            continue
        own, others = _bytes(graph, latter.outputs), _bytes(graph, former.outputs)
        before = memory[place] - others - former.temporary_bytes
        freed = _bytes(graph, (v for v in ending.get(place + 1, ()) if v not in former.inputs))
        behind = before + others + former.temporary_bytes - freed
        found.append(own + max(before + latter.temporary_bytes, behind))
    return found


def _bytes(graph: RematGraph, values: Iterable[int]) -> int:
    return sum(graph.values[value].size_bytes for value in values)


def _needed_bytes(graph: RematGraph, schedule: Schedule, aim_bytes: float) -> tuple[int, float]:
    """The heap in the worst case, then how much all places are above the aim: one of several
    equally bad places may be mended at a time."""
    swapped = swapped_bytes(graph, schedule)
    worst = max(heap_bytes(graph, schedule), *swapped, 0)
    return worst, sum(each - aim_bytes for each in swapped if each > aim_bytes)


def repacked(
    graph: RematGraph, schedule: Schedule, limit_bytes: int, budget_bytes: int, seed: int = 0
) -> Schedule:
    """The same computations in an order that stays well within the budget, or at least needs less.

    **Arguments:**

    - `schedule`: valid; its peak is within `limit_bytes`, and so is that of the result.
    """
    draw, best = random.Random(seed), schedule
    aim_bytes = AIM * budget_bytes
    least = _needed_bytes(graph, schedule, aim_bytes)
    for _ in range(min(MOST_TRIES, WORK // max(1, len(schedule.steps)))):
        if least[0] <= aim_bytes:
            break
        other = _moved(graph, best.steps, draw)
        if other is None or simulate(graph, other).peak_bytes > limit_bytes:
            continue
        found = _needed_bytes(graph, other, aim_bytes)
        if found <= least:
            best, least = other, found
    return best


def _moved(graph: RematGraph, steps: Sequence[int], draw: random.Random) -> Schedule | None:
    """One step elsewhere between the steps that it is tied to; None where it is tied on both."""
    place = draw.randrange(len(steps))
    low, high = _room(graph, steps, place)
    to = draw.randint(low, high)
    if to == place:
        return None
    others = [*steps[:place], *steps[place + 1 :]]
    return Schedule((*others[:to], steps[place], *others[to:]))


def _room(graph: RematGraph, steps: Sequence[int], place: int) -> tuple[int, int]:
    """The first and the last place that a step can be moved to."""
    own = graph.operators[steps[place]]
    reads, writes = set(own.inputs), set(own.outputs)
    low = high = place
    while low and steps[low - 1] != steps[place]:
        if not reads.isdisjoint(graph.operators[steps[low - 1]].outputs):
            break
        low -= 1
    while high + 1 < len(steps) and steps[high + 1] != steps[place]:
        if not writes.isdisjoint(graph.operators[steps[high + 1]].inputs):
            break
        high += 1
    return low, high
