"""Kiwi's own planner: many short annealing runs of different heat, start and objective.

Rounds of runs, two at a time in threads (compiled code holds no lock). Early rounds start from
the given order and from grouped operators, later ones from the best schedule so far; runs
alternate between equation 1 of FastSA and its strict form, and between temperatures in
units of the mean time of an operator. All kinds of moves are used, most of them aimed: chains
are recomputed and dropped in one move, so that no grouping is needed to find them.

Stops early once no recomputation is left: then the schedule is optimal.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from kiwi.solver.remat.annealing.anneal import PRODUCT, STRICT
from kiwi.solver.remat.fastsa import AnnealingSettings, run_annealing
from kiwi.solver.remat.graph import RematGraph
from kiwi.solver.remat.grouping import group_operators
from kiwi.solver.remat.result import Finding, Task
from kiwi.solver.remat.simulate import simulate
from kiwi.solver.schedule import Schedule

MOVES_PER_SECOND = 400_000
"""Planned moves per second and thread: about half of what one core does."""
WORKERS = 2
AIMED_SHARES = (1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
ORDER, GROUPED, BEST = "order", "grouped", "best"
COOLING = 1e-3


@dataclass(frozen=True)
class Run:
    """One annealing run: where it starts, its heat (in mean operator times), its objective."""

    start: str
    heat: float
    objective: int


ROUNDS: tuple[tuple[Run, ...], ...] = (
    (Run(ORDER, 2.0, PRODUCT), Run(GROUPED, 0.5, STRICT)),
    (Run(ORDER, 2.0, STRICT), Run(BEST, 0.5, PRODUCT)),
    (Run(ORDER, 1.0, PRODUCT), Run(BEST, 2.0, STRICT)),
    (Run(BEST, 2.0, PRODUCT), Run(BEST, 0.1, STRICT)),
    (Run(BEST, 0.5, PRODUCT), Run(BEST, 2.0, PRODUCT)),
    (Run(BEST, 0.1, PRODUCT), Run(BEST, 0.5, STRICT)),
)


@dataclass(frozen=True)
class Candidate:
    """A schedule with its simulated numbers; candidates are compared by `rank`."""

    schedule: Schedule
    peak_bytes: int
    seconds: float
    budget_bytes: int

    @property
    def rank(self) -> tuple[int, float, float]:
        """Within the budget first, then least time; otherwise least peak."""
        if self.peak_bytes <= self.budget_bytes:
            return (0, self.seconds, self.peak_bytes)
        return (1, self.peak_bytes, self.seconds)


def remat(task: Task) -> Finding:
    """The best schedule of all rounds."""
    graph = task.graph
    best = _candidate(task, Schedule(graph.order))
    iterations, deterministic = 0, True
    for number, runs in enumerate(ROUNDS):
        if _is_done(task, best) or task.remaining_seconds() <= 0:
            break
        outcomes = list(_parallel(task, number, runs, best.schedule))
        iterations += sum(moves for _, moves, _ in outcomes)
        deterministic = deterministic and all(completed for _, _, completed in outcomes)
        best = min([best, *(candidate for candidate, _, _ in outcomes)], key=lambda c: c.rank)
    finished = _is_done(task, best) or task.remaining_seconds() > 0
    return Finding(best.schedule, iterations=iterations, deterministic=deterministic and finished)


def _candidate(task: Task, schedule: Schedule) -> Candidate:
    found = simulate(task.graph, schedule)
    return Candidate(schedule, found.peak_bytes, found.compute_seconds, task.budget_bytes)


def _is_done(task: Task, best: Candidate) -> bool:
    once = task.graph.once_seconds
    return best.peak_bytes <= task.budget_bytes and best.seconds <= once * (1 + 1e-12)


def _parallel(
    task: Task, number: int, runs: tuple[Run, ...], best: Schedule
) -> Iterable[tuple[Candidate, int, bool]]:
    moves = max(1000, round(task.time_limit_seconds * MOVES_PER_SECOND / len(ROUNDS)))
    seeds = [task.seed * 1009 + number * WORKERS + place for place in range(len(runs))]
    starts = {ORDER: Schedule(task.graph.order), BEST: best}
    if any(run.start == GROUPED for run in runs):
        starts[GROUPED] = _grouped_order(task.graph)

    def work(run: Run, seed: int) -> tuple[Candidate, int, bool]:
        start = starts[run.start]
        heat = run.heat / max(1, len(task.graph.operators))
        settings = AnnealingSettings(moves, run.objective, heat, heat * COOLING, AIMED_SHARES)
        outcome = run_annealing(replace(task, seed=seed), task.graph, start, settings)
        return _candidate(task, outcome.schedule), outcome.moves, outcome.completed

    with ThreadPoolExecutor(WORKERS) as pool:
        yield from pool.map(work, runs, seeds)


def _grouped_order(graph: RematGraph) -> Schedule:
    grouping = group_operators(graph)
    return grouping.expand(Schedule(grouping.graph.order))
