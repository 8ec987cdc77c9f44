"""FastSA: simulated annealing with recomputation and reordering (Imanishi et al., NeurIPS 2023).

First stage on grouped operators until the budget is met or the moves are used up, second stage
on single operators at low temperature. Differs from the text in the length of the sequence:
the smallest power of two that leaves at least `GAPS_PER_STEP` positions per step, instead
of always 2**20, because a tree that fits the cache is several times faster.
"""

import functools
import math
import time
from dataclasses import dataclass, replace

import numpy as np

from kiwi.solver.remat.annealing.anneal import (
    SHARP,
    Plan,
    anneal,
    make_best,
    objective_value,
    start_best,
)
from kiwi.solver.remat.annealing.memory import peak_bytes
from kiwi.solver.remat.annealing.proposals import MOVE_KINDS, ROTATE
from kiwi.solver.remat.annealing.sequence import load, make_state
from kiwi.solver.remat.annealing.tables import make_tables
from kiwi.solver.remat.graph import RematGraph
from kiwi.solver.remat.grouping import group_operators
from kiwi.solver.remat.result import Finding, Task, smallest_task
from kiwi.solver.schedule import Schedule

GAPS_PER_STEP = 8
NOMINAL_MOVES_PER_SECOND = 1_000_000
"""Moves are planned by this rate, so that results do not depend on the speed of the machine."""
CHUNK_MOVES = 20_000
FIRST_STAGE_MOVES = 20_000_000
SECOND_STAGE_MOVES = 6_000_000
"""The text has 2 million; the first stage mostly ends early and leaves time for more."""
FIRST_STAGE_SHARE = 0.6
"""Of the time left, on machines too slow for the moves planned."""
PAPER_SHARES = (1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class AnnealingSettings:
    """One annealing run.

    **Attributes:**

    - `moves`: how many changes are tried.
    - `objective`: `PRODUCT` (equation 1) or `SHARP` (footnote 2, meets budgets).
    - `first_temperature`, `last_temperature`: relative to the objective at the start.
    - `shares`: relative frequencies of the kinds of moves (`annealing.proposals`).
    - `stop_at_budget`: end as soon as the budget is met.
    """

    moves: int
    objective: int = SHARP
    first_temperature: float = 1e-3
    last_temperature: float = 1e-7
    shares: tuple[float, ...] = PAPER_SHARES
    stop_at_budget: bool = False


@dataclass(frozen=True)
class AnnealingOutcome:
    """The best sequence of a run, and at which temperature (relative) it ended."""

    schedule: Schedule
    within_budget: bool
    temperature: float
    moves: int
    completed: bool


@dataclass(frozen=True)
class FastSASettings:
    """The two stages; without `group` both work on single operators."""

    first: AnnealingSettings = AnnealingSettings(FIRST_STAGE_MOVES, stop_at_budget=True)
    second: AnnealingSettings = AnnealingSettings(SECOND_STAGE_MOVES)
    group: bool = True


def fastsa(task: Task, settings: FastSASettings | None = None) -> Finding:
    """Both stages on `task.graph`."""
    settings = _within_time(settings or FastSASettings(), task.time_limit_seconds)
    grouping = group_operators(task.graph) if settings.group else None
    graph = grouping.graph if grouping else task.graph
    seconds = FIRST_STAGE_SHARE * task.remaining_seconds()
    first = run_annealing(task, graph, Schedule(graph.order), settings.first, seconds)
    start = grouping.expand(first.schedule) if grouping else first.schedule
    second_settings = _second_stage(settings, first)
    second = run_annealing(task, task.graph, start, second_settings, task.remaining_seconds())
    return Finding(
        second.schedule,
        iterations=first.moves + second.moves,
        deterministic=first.completed and second.completed,
    )


def _second_stage(settings: FastSASettings, first: AnnealingOutcome) -> AnnealingSettings:
    """As in the text; but where groups cannot meet the budget, a whole run on single operators."""
    if not first.within_budget:
        return replace(settings.first, moves=settings.first.moves // 2, stop_at_budget=False)
    return replace(
        settings.second,
        first_temperature=first.temperature,
        last_temperature=first.temperature * 1e-4,
    )


def order_only(task: Task) -> Finding:
    """A topological order of small peak, without recomputation (appendix B.2)."""
    settings = _within_time(FastSASettings(), task.time_limit_seconds)
    shares = tuple(float(kind == ROTATE) for kind in range(MOVE_KINDS))
    rotating = replace(settings.first, shares=shares)
    outcome = run_annealing(task, task.graph, Schedule(task.graph.order), rotating)
    return Finding(outcome.schedule, iterations=outcome.moves, deterministic=outcome.completed)


@functools.cache
def warm_up() -> None:
    """Compiles the annealing loop, or loads what was compiled before."""
    task = smallest_task()
    run_annealing(task, task.graph, Schedule(task.graph.order), AnnealingSettings(1))


def run_annealing(
    task: Task,
    graph: RematGraph,
    start: Schedule,
    settings: AnnealingSettings,
    seconds: float = math.inf,
) -> AnnealingOutcome:
    """One annealing run on `graph` (the task's own, or a grouping of it) from `start`.

    The clock is looked at between chunks of moves: a run that would take longer than `seconds`
    cools faster, with fewer moves. At the deadline it ends, however hot.
    """
    started = time.monotonic()
    tables = make_tables(graph, start)
    least = GAPS_PER_STEP * (len(start.steps) + 1)
    positions = max(64, 1 << (least - 1).bit_length())
    state = make_state(tables, positions, task.seed)
    load(tables, state, np.array(start.steps, np.int32))
    budget = float(max(1, task.budget_bytes - graph.resident_bytes))
    best = make_best(positions)
    start_best(state, best, budget)
    peak = peak_bytes(state.memory)
    value = objective_value(settings.objective, budget, peak, state.seconds[0])
    unit = value if value > 0 else 1.0
    cumulated = np.cumsum(settings.shares) / np.sum(settings.shares)
    cumulated[-1] = 1.0
    done, temperature = 0, settings.first_temperature
    fall = settings.last_temperature / settings.first_temperature
    stopped, progress = settings.stop_at_budget and best.score[0] > 0, 0.0
    while progress < 1.0 and not stopped and task.remaining_seconds() > 0:
        chunk = min(CHUNK_MOVES, settings.moves - done)
        done += chunk
        progress = max(done / settings.moves, (time.monotonic() - started) / max(seconds, 1e-3))
        next_temperature = settings.first_temperature * fall ** min(1.0, progress)
        hot, cold = temperature * unit, next_temperature * unit
        plan = Plan(budget, settings.objective, chunk, hot, cold, cumulated)
        value = anneal(tables, state, best, plan, value)
        temperature = next_temperature
        stopped = settings.stop_at_budget and best.score[0] > 0
    return AnnealingOutcome(
        Schedule(tuple(best.steps[: best.count[0]].tolist())),
        bool(best.score[0]),
        temperature,
        done,
        stopped or done >= settings.moves,
    )


def _within_time(settings: FastSASettings, time_limit_seconds: float) -> FastSASettings:
    planned = max(1.5 * settings.first.moves, settings.first.moves + settings.second.moves)
    share = min(1.0, 0.9 * time_limit_seconds * NOMINAL_MOVES_PER_SECOND / planned)
    return replace(
        settings,
        first=replace(settings.first, moves=max(1, round(share * settings.first.moves))),
        second=replace(settings.second, moves=max(1, round(share * settings.second.moves))),
    )
