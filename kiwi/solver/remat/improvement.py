"""Large-neighbourhood improvement: recomputations of operators that lie together, planned anew.

First of all operators at once, which small graphs allow: no schedule with the same order of first
computations and as many copies is better then. Otherwise of growing or shrinking sets of
operators around one that is recomputed, as large as can be searched completely.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kiwi.solver.remat.graph import RematGraph
from kiwi.solver.remat.result import Candidate, Finding, Task, candidate
from kiwi.solver.schedule import Schedule

WORKERS = 2
SECONDS_PER_TRY = 0.1
"""By which tries are planned; the effort below takes about as long."""
EFFORT = 0.02
"""Of one try, in CP-SAT's deterministic time."""
WHOLE_EFFORT = 0.2
MOST_PLACES = 50_000
"""Free operators times steps: for more the programs take long to build."""
MOST_PLACES_OF_ALL = 8_000
"""The same where all operators are free: more are not searched completely in the time."""
FIRST_SIZE = 12
GROWTH = 1.25


def improvement(
    task: Task, start: Candidate, seconds: float, wall_seconds: float, seed: int
) -> Finding:
    """Improves a schedule within the budget; others are returned as they are.

    `seconds`: the time on a machine as fast as planned; `wall_seconds`: the most in any case.
    """
    if not start.fits or not _has_room(range(FIRST_SIZE), start):
        return Finding(start.schedule)
    ends = time.monotonic() + wall_seconds
    best, tries = start, 0
    whole = [k for k, operator in enumerate(task.graph.operators) if operator.recomputable]
    if _has_room(whole, best, MOST_PLACES_OF_ALL):
        best, complete = _tried(task, best, [whole], WHOLE_EFFORT * min(1.0, seconds), ends)
        tries = 1
        if complete:
            return Finding(best.schedule, iterations=tries)
    draw, size = random.Random(seed), FIRST_SIZE
    for _ in range(max(1, round(seconds / SECONDS_PER_TRY))):
        if best.is_least or time.monotonic() >= ends:
            break
        around = [_around(task.graph, best, size, draw) for _ in range(WORKERS)]
        sets = [free for free in around if _has_room(free, best)]
        best, complete = _tried(task, best, sets, EFFORT, ends)
        tries += WORKERS
        size = max(4, round(size * GROWTH if complete else size / GROWTH))
    return Finding(best.schedule, iterations=tries, deterministic=time.monotonic() < ends)


def _has_room(free: Sequence[int], best: Candidate, most_places: int = MOST_PLACES) -> bool:
    return 0 < len(free) * len(best.schedule.steps) <= most_places


def _tried(
    task: Task, best: Candidate, sets: list[list[int]], effort: float, ends: float
) -> tuple[Candidate, bool]:
    """The best of all neighbourhoods of `best`, searched at once; whether they were completely."""

    def work(free: list[int]) -> tuple[Schedule | None, bool]:
        left = ends - time.monotonic()
        from kiwi.solver.remat.neighbourhood import improve  # CP-SAT, with pandas: half a second

        return improve(task.graph, best.schedule, free, task.budget_bytes, effort, left)

    with ThreadPoolExecutor(WORKERS) as pool:
        found = list(pool.map(work, sets))
    better = [candidate(task, schedule) for schedule, _ in found if schedule is not None]
    complete = bool(found) and all(complete for _, complete in found)
    return min([best, *better], key=lambda c: c.rank), complete


def _around(graph: RematGraph, best: Candidate, size: int, draw: random.Random) -> list[int]:
    """Operators around one that is recomputed, as a walk along operands and readers finds them."""
    counts = Counter(best.schedule.steps)
    again = [k for k in sorted(counts) if counts[k] > 1]
    if not again:
        return []
    free = [draw.choice(again)]
    inside = set(free)
    for k in free:
        near = [*graph.predecessors(k)]
        near += [reader for v in graph.operators[k].outputs for reader in graph.readers[v]]
        draw.shuffle(near)
        for other in near:
            if other not in inside and graph.operators[other].recomputable and len(free) < size:
                inside.add(other)
                free.append(other)
    return free
