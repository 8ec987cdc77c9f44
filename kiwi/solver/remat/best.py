"""Kiwi's own planner: many short annealing runs of different heat, start and objective.

Rounds of runs, two at a time in threads (compiled code holds no lock). The first round starts
from the given order and runs `fastsa`, later ones mostly start from the best schedule so far;
runs alternate between equation 1 of FastSA and its strict form, and between temperatures in
units of the mean time of an operator. The last rounds repeat the kind of run that gained most,
and a cooler one. All kinds of moves are used, most of them aimed: chains are recomputed and
dropped in one move.

Stops early once no recomputation is left: then the schedule is optimal.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from kiwi.solver.remat.annealing.anneal import PRODUCT, SHARP, STRICT
from kiwi.solver.remat.candidate import Candidate, candidate
from kiwi.solver.remat.fastsa import AnnealingSettings, fastsa, run_annealing
from kiwi.solver.remat.result import Finding, Task
from kiwi.solver.schedule import Schedule

MOVES_PER_SECOND = 400_000
"""Planned moves per second and thread: about half of what one core does."""
WORKERS = 2
AIMED_SHARES = (1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
ORDER, FASTSA, BEST = "order", "fastsa", "best"
COOLING = 1e-3


@dataclass(frozen=True)
class Run:
    """One annealing run: where it starts, its heat (in mean operator times), its objective."""

    start: str
    heat: float
    objective: int


FIXED_ROUNDS: tuple[tuple[Run, ...], ...] = (
    (Run(ORDER, 2.0, PRODUCT), Run(FASTSA, 0.0, SHARP)),
    (Run(BEST, 0.5, PRODUCT), Run(BEST, 0.05, PRODUCT)),
    (Run(BEST, 2.0, STRICT), Run(ORDER, 2.0, STRICT)),
    (Run(BEST, 0.1, STRICT), Run(BEST, 2.0, PRODUCT)),
)
ADAPTED_ROUNDS = 4
FASTSA_SHARE = 0.25
"""Share of the time limit for the run of `fastsa`, which mostly ends much earlier."""


@dataclass(frozen=True)
class Outcome:
    """What a run found; `completed` is False where the clock ended it."""

    candidate: Candidate
    moves: int
    completed: bool


def remat(task: Task) -> Finding:
    """The best schedule of all rounds."""
    best = candidate(task, Schedule(task.graph.order))
    iterations, deterministic = 0, True
    gains: list[tuple[float, int, Run]] = []
    for number in range(len(FIXED_ROUNDS) + ADAPTED_ROUNDS):
        if best.is_least(task) or task.remaining_seconds() <= 0:
            break
        adapted = number >= len(FIXED_ROUNDS)
        runs = _adapted(gains, number) if adapted else FIXED_ROUNDS[number]
        outcomes = list(_parallel(task, number, runs, best.schedule))
        for run, outcome in zip(runs, outcomes, strict=True):
            iterations += outcome.moves
            deterministic = deterministic and outcome.completed
            if run.start == BEST:
                gains.append((_gain(best, outcome.candidate), -number, run))
        best = min([best, *(outcome.candidate for outcome in outcomes)], key=lambda c: c.rank)
    return Finding(best.schedule, iterations=iterations, deterministic=deterministic)


def _gain(before: Candidate, after: Candidate) -> float:
    if after.rank >= before.rank:
        return 0.0
    if after.rank[0] < before.rank[0]:
        return 1.0
    return 1.0 - after.rank[1] / before.rank[1]


def _adapted(gains: list[tuple[float, int, Run]], number: int) -> tuple[Run, ...]:
    """The run that gained most (the earlier of equals), and a cooler or hotter one in turn."""
    run = max(gains, key=lambda each: each[:2])[2]
    factor = 0.3 if number % 2 else 3.0
    other = PRODUCT if run.objective == STRICT else STRICT
    return run, replace(run, heat=run.heat * factor, objective=other)


def _parallel(task: Task, number: int, runs: tuple[Run, ...], best: Schedule) -> Iterator[Outcome]:
    rounds = len(FIXED_ROUNDS) + ADAPTED_ROUNDS
    share_seconds = task.time_limit_seconds / rounds
    seeds = [task.seed * 1009 + number * WORKERS + place for place in range(len(runs))]

    def work(run: Run, seed: int) -> Outcome:
        own = replace(task, seed=seed)
        if run.start == FASTSA:
            return _fastsa(replace(own, time_limit_seconds=FASTSA_SHARE * task.time_limit_seconds))
        start = best if run.start == BEST else Schedule(task.graph.order)
        heat = run.heat / max(1, len(task.graph.operators))
        moves = max(1000, round(share_seconds * MOVES_PER_SECOND))
        settings = AnnealingSettings(moves, run.objective, heat, heat * COOLING, AIMED_SHARES)
        outcome = run_annealing(own, task.graph, start, settings)
        found = candidate(task, outcome.schedule)
        return Outcome(found, outcome.moves, outcome.completed)

    with ThreadPoolExecutor(WORKERS) as pool:
        yield from pool.map(work, runs, seeds)


def _fastsa(task: Task) -> Outcome:
    finding = fastsa(task)
    schedule = finding.schedule or Schedule(task.graph.order)
    return Outcome(candidate(task, schedule), finding.iterations, finding.deterministic)
