"""Kiwi's own planner: annealing with reordering, and improvement of large neighbourhoods.

The planner runs in rounds of two threads each, because compiled code does not hold the
interpreter's lock. The first rounds anneal from the given order, in short and long runs, and run
`fastsa`. Temperatures are in units of the mean time of an operator, and the objective is equation 1
of FastSA. Runs use many kinds of moves, most of them aimed: chains are recomputed and dropped in
one move. Then two steps alternate:

- Constraint programming plans the recomputations of many operators anew (`improvement`). If the
  graph is small, these are all operators, and the result is exact for the known order.
- Cooler annealing runs start from the best schedule. They may change the order, too.

The planner stops early once no recomputation is left: the schedule is then optimal. A search that
continues from the result for another budget begins with the runs from the best schedule.

**Large-neighbourhood improvement** plans recomputations of neighbouring operators anew. If the
graph is small, it first takes all operators at once. If that search is complete, no schedule with
the same order of first computations and as many copies is better. Otherwise the improvement takes
growing or shrinking sets of operators around a recomputed one, as large as can be searched
completely.
"""

import random
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from kiwi.literature.remat.annealing.anneal import PRODUCT, SHARP, STRICT
from kiwi.literature.remat.fastsa import AnnealingSettings, fastsa, run_annealing
from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.result import Candidate, Finding, Task, candidate
from kiwi.solver.schedule import Schedule

MOVES_PER_SECOND = 400_000
"""The rate, per thread, from which the number of moves is derived, so that results do not depend on
the speed of the machine."""
MOVES_PER_OPERATOR = 20_000
"""The largest number of moves of one run, per operator. Further moves gain nothing on small
graphs."""
AIMED_SHARES = (1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)
"""The relative frequencies of the kinds of moves (`annealing.moves`)."""
ORDER, FASTSA, BEST = "order", "fastsa", "best"
"""The schedule from which a run starts: the given order, plain FastSA's own, or the best so far."""
COOLING = 1e-3
"""The last temperature of a run as a share of the first."""

WORKERS = 2
"""The number of parallel runs, and of neighbourhoods searched at once."""
SECONDS_PER_TRY = 0.1
"""The seconds from which the number of tries is derived. A try of effort `EFFORT` takes about as
long."""
EFFORT = 0.02
"""The limit of one try in CP-SAT's deterministic time."""
WHOLE_EFFORT = 0.2
"""The limit of the try in which all operators are free, in CP-SAT's deterministic time."""
MOST_PLACES = 50_000
"""The largest number of places (free operators times steps) of a neighbourhood. A larger
neighbourhood is not tried, because its program takes long to build."""
MOST_PLACES_OF_ALL = 8_000
"""The largest number of places if all operators are free. A larger program cannot be searched
completely in its time and is not tried."""
FIRST_SIZE = 12
"""The first number of free operators of a neighbourhood."""
GROWTH = 1.25
"""The factor by which a neighbourhood grows after a complete search, and shrinks after another."""


@dataclass(frozen=True)
class Run:
    """One annealing run.

    - `start`: `ORDER`, `FASTSA` or `BEST`.
    - `heat`: the first temperature, in mean times of an operator.
    - `objective`: an objective of `annealing.anneal`.
    """

    start: str
    heat: float
    objective: int = PRODUCT


@dataclass(frozen=True)
class Round:
    """A share of the time for parallel annealing runs, or for improvement if there are no runs.

    `until_met` replaces `runs`, unless empty, while the best schedule is over the budget.
    """

    share: float
    runs: tuple[Run, ...] = ()
    until_met: tuple[Run, ...] = ()


FROM_ORDER, FROM_ORDER_SHARP = Run(ORDER, 2.0), Run(ORDER, 1.0, SHARP)
AROUND_BEST, TO_BUDGET = Run(BEST, 0.5), Run(BEST, 0.1, SHARP)
COOL = (Run(BEST, 0.1, STRICT), Run(BEST, 0.03))
PLAIN = Run(FASTSA, 0.0)

ROUNDS = (
    Round(0.08, (Run(ORDER, 0.5), FROM_ORDER_SHARP)),
    Round(0.42, (FROM_ORDER, PLAIN), until_met=(FROM_ORDER, FROM_ORDER_SHARP)),
    Round(0.08),
    Round(0.15, (TO_BUDGET, AROUND_BEST), until_met=(TO_BUDGET, PLAIN)),
    Round(0.07),
    Round(0.12, COOL),
    Round(0.08),
)
"""The rounds of a search that starts from the given order."""

ROUNDS_FROM_START = (
    Round(0.3, (TO_BUDGET, AROUND_BEST), until_met=(TO_BUDGET, Run(BEST, 0.5, SHARP))),
    Round(0.08),
    Round(0.3, (COOL[0], FROM_ORDER), until_met=(Run(BEST, 0.03, SHARP), FROM_ORDER_SHARP)),
    Round(0.08),
    Round(0.16, COOL),
    Round(0.08),
)
"""The rounds of a search that continues from the result of an earlier one."""


def remat(task: Task) -> Finding:
    """Returns the best schedule of all rounds."""
    best = candidate(task, task.start or Schedule(task.graph.order))
    rounds = ROUNDS if task.start is None else ROUNDS_FROM_START
    iterations, deterministic = 0, True
    for number, current in enumerate(rounds):
        if best.is_least or task.remaining_seconds() <= 0:
            break
        left = sum(later.share for later in rounds[number:])
        wall_seconds = task.remaining_seconds() * current.share / left
        seeds = [task.seed * 1009 + number * WORKERS + place for place in range(WORKERS)]
        for finding in _round(task, current, best, wall_seconds, seeds):
            iterations += finding.iterations
            deterministic = deterministic and finding.deterministic
            proposal = candidate(task, finding.schedule or best.schedule)
            best = min([best, proposal], key=lambda option: option.rank)
    return Finding(best.schedule, iterations=iterations, deterministic=deterministic)


def _round(
    task: Task, each: Round, best: Candidate, wall_seconds: float, seeds: list[int]
) -> list[Finding]:
    """Returns the findings of one round.

    The round plans its work for its share of the time limit, and takes at most `wall_seconds`.
    """
    seconds = each.share * task.time_limit_seconds
    if not each.runs:
        return [improvement(task, best, seconds, wall_seconds, seeds[0])]

    def work(run: Run, seed: int) -> Finding:
        if run.start == FASTSA:  # plans for the whole time limit and mostly ends far earlier
            deadline = min(task.deadline, time.monotonic() + wall_seconds)
            return fastsa(replace(task, deadline=deadline))
        seeded_task = replace(task, seed=seed)
        start = best.schedule if run.start == BEST else Schedule(task.graph.order)
        return _annealed(seeded_task, run, start, seconds, wall_seconds)

    runs = each.runs if best.fits else each.until_met or each.runs
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(work, runs, seeds))


def _annealed(
    task: Task, run: Run, start: Schedule, seconds: float, wall_seconds: float
) -> Finding:
    count = max(1, len(task.graph.operators))
    heat = run.heat / count
    moves = max(1000, min(MOVES_PER_OPERATOR * count, round(seconds * MOVES_PER_SECOND)))
    settings = AnnealingSettings(moves, run.objective, heat, heat * COOLING, AIMED_SHARES)
    outcome = run_annealing(task, task.graph, start, settings, wall_seconds)
    return Finding(outcome.schedule, iterations=outcome.moves, deterministic=outcome.completed)


def improvement(
    task: Task, start: Candidate, seconds: float, wall_seconds: float, seed: int
) -> Finding:
    """Returns an improved schedule if `start` is within the budget, else the schedule of `start`.

    The number of tries is derived from `seconds`. The improvement takes at most `wall_seconds`.
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
    """Searches all neighbourhoods `sets` in parallel, each from `best`.

    Returns the best candidate, which is `best` if none is better, and whether all neighbourhoods
    were searched completely.
    """

    def work(free: list[int]) -> tuple[Schedule | None, bool]:
        left = ends - time.monotonic()
        # Imported late, because CP-SAT imports pandas, which is slow.
        from kiwi.literature.remat.neighbourhood import improve

        return improve(task.graph, best.schedule, free, task.budget_bytes, effort, left)

    with ThreadPoolExecutor(WORKERS) as pool:
        results = list(pool.map(work, sets))
    better = [candidate(task, schedule) for schedule, _ in results if schedule is not None]
    complete = bool(results) and all(complete for _, complete in results)
    return min([best, *better], key=lambda option: option.rank), complete


def _around(graph: RematGraph, best: Candidate, size: int, draw: random.Random) -> list[int]:
    """Returns operators around a random recomputed one: a walk along operands and readers.

    The list has at most `size` operators. It is empty if nothing is recomputed.
    """
    counts = Counter(best.schedule.steps)
    again = [k for k in sorted(counts) if counts[k] > 1]
    if not again:
        return []
    free = [draw.choice(again)]
    inside = set(free)
    for k in free:
        neighbours = [*graph.predecessors(k)]
        neighbours += [
            reader for value in graph.operators[k].outputs for reader in graph.readers[value]
        ]
        draw.shuffle(neighbours)
        for other in neighbours:
            if other not in inside and graph.operators[other].recomputable and len(free) < size:
                inside.add(other)
                free.append(other)
    return free
