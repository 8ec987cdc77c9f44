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
from collections.abc import Sequence
from dataclasses import dataclass

from kiwi.plan.packing import packed_bytes
from kiwi.solver.problem import Interval
from kiwi.solver.remat import RematGraph, simulate
from kiwi.solver.remat.simulate import LiveRange, live_ranges
from kiwi.solver.schedule import Schedule

WORK = 500_000
"""Tries times steps: five seconds or less. Large graphs waste less, and get fewer tries."""
MOST_TRIES = 2000
AIM = 0.985
"""Share of the budget at which a heap is small enough: compiled ones are up to 1.5 % larger than
simulated, because neighbours may run in another order."""


def heap_bytes(
    graph: RematGraph, schedule: Schedule, lives: Sequence[LiveRange] | None = None
) -> int:
    """What XLA's heap needs for a schedule, with what is resident throughout.

    `lives` are its live ranges, where they are at hand.
    """
    buffers = [
        Interval(live.first, live.last + 1, graph.values[live.value].size_bytes)
        for live in (live_ranges(graph, schedule) if lives is None else lives)
        if graph.values[live.value].size_bytes
    ]
    for step, index in enumerate(schedule.steps):
        temporary_bytes = graph.operators[index].temporary_bytes
        if temporary_bytes:
            buffers.append(Interval(step, step + 1, temporary_bytes))
    return graph.resident_bytes + packed_bytes(buffers)


def swapped_bytes(
    graph: RematGraph, schedule: Schedule, memory_bytes: Sequence[int], lives: Sequence[LiveRange]
) -> list[int]:
    """The most that is alive should a step run before its neighbour, for each that does not read
    the neighbour's result.

    `memory_bytes` and `lives` are those of the schedule as it is (`simulate`, `live_ranges`).
    """
    size = [value.size_bytes for value in graph.values]
    ending: dict[int, list[int]] = {}
    for live in lives:
        if live.first != live.last - 1 and size[live.value]:
            ending.setdefault(live.last, []).append(live.value)
    steps = [graph.operators[index] for index in schedule.steps]
    found = []
    for place, (former, latter) in enumerate(itertools.pairwise(steps)):
        if not set(latter.inputs).isdisjoint(former.outputs):
            continue
        own = sum(size[value] for value in latter.outputs)
        others = sum(size[value] for value in former.outputs) + former.temporary_bytes
        before = memory_bytes[place] - others
        freed = sum(size[v] for v in ending.get(place + 1, ()) if v not in former.inputs)
        found.append(before + own + max(latter.temporary_bytes, others - freed))
    return found


@dataclass(frozen=True)
class _Order:
    """A schedule and what it needs; orders are compared by that.

    `needed`: the heap or what is alive in the worst case, then how much all places are above the
    aim: one of several equally bad places may be mended at a time.
    """

    schedule: Schedule
    needed: tuple[int, float]

    @classmethod
    def of(
        cls, graph: RematGraph, schedule: Schedule, limit_bytes: int, aim_bytes: float
    ) -> "_Order | None":
        """None if it peaks above the limit."""
        found = simulate(graph, schedule)
        if found.peak_bytes > limit_bytes:
            return None
        lives = live_ranges(graph, schedule)
        swapped = swapped_bytes(graph, schedule, found.memory_bytes, lives)
        worst = max(heap_bytes(graph, schedule, lives), *swapped, 0)
        above = sum(each - aim_bytes for each in swapped if each > aim_bytes)
        return cls(schedule, (worst, above))


def repacked(
    graph: RematGraph, schedule: Schedule, limit_bytes: int, budget_bytes: int, seed: int = 0
) -> Schedule:
    """The same computations in an order that stays well within the budget, or at least needs less.

    **Arguments:**

    - `schedule`: valid; its peak is within `limit_bytes`, and so is that of the result.
    """
    draw, aim_bytes = random.Random(seed), AIM * budget_bytes
    best = _Order.of(graph, schedule, limit_bytes, aim_bytes)
    assert best is not None
    for _ in range(min(MOST_TRIES, WORK // max(1, len(schedule.steps)))):
        if best.needed[0] <= aim_bytes:
            break
        other = _moved(graph, best.schedule.steps, draw)
        found = None if other is None else _Order.of(graph, other, limit_bytes, aim_bytes)
        if found is not None and found.needed <= best.needed:
            best = found
    return best.schedule


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
