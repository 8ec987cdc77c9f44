"""Plans for one device by the planners of `kiwi.solver.remat`: recomputation and order alone.

1. The step is planned without a limit and without recomputation: what is to be scheduled.
2. A planner finds a schedule of its units within the budget.
3. It is emitted and compiled as any plan. While the compiled peak is over the budget, the limit
   is lowered by what the compiled program holds beyond the simulated peak, and planned again.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError
from kiwi.plan.budget import format_bytes
from kiwi.plan.estimate import Estimate
from kiwi.plan.notes import notes
from kiwi.plan.plan import Plan
from kiwi.plan.planners import planner_named
from kiwi.plan.rounds import Round
from kiwi.plan.targets import compile_for
from kiwi.solver import SolveResult
from kiwi.solver.remat import RematGraph, RematResult, simulate, solve
from kiwi.strategy.remat_graph import one_device_strategies, remat_graph

if TYPE_CHECKING:
    from kiwi.plan.planner import Settings

NO_LIMIT_BYTES = 2**60
MOST_ROUNDS = 4
"""How many schedules are compiled at most."""


@dataclass(frozen=True)
class _Question:
    """What every round asks: the graph of the base plan, which keeps everything."""

    base: Plan
    graph: RematGraph
    settings: "Settings"


def plan_one_device(base: Plan, settings: "Settings") -> Plan:
    """The first schedule whose program, compiled for `settings.verify`, is within the budget.

    **Raises:** `InvalidMeshError` for several devices, `InfeasibleBudgetError` with the smallest
    budget known to be feasible and a proven bound, `BudgetNotMetError` if no schedule fits as
    compiled, `InvalidProblemError` where the planner cannot take the graph.
    """
    planner_named(settings.planner).check(settings.mesh)
    units = base.execution.units
    question = _Question(
        base, remat_graph(units, one_device_strategies(units, base.mesh)), settings
    )
    limit_bytes, nearest = settings.memory_budget_bytes, None
    rounds: tuple[Round, ...] = ()
    for _ in range(MOST_ROUNDS):
        try:
            plan = _round(question, limit_bytes, rounds)
        except InfeasibleBudgetError:
            if nearest is None:
                raise
            break
        if settings.verify is None or plan.fits:
            return plan
        rounds = plan.rounds
        nearest = plan if nearest is None else min(nearest, plan, key=lambda p: p.peak_bytes)
        limit_bytes -= plan.peak_bytes - settings.memory_budget_bytes
        if limit_bytes <= 0:
            break
    assert nearest is not None
    raise _not_met(nearest, settings)


def _round(question: _Question, limit_bytes: int, before: tuple[Round, ...]) -> Plan:
    settings, base = question.settings, question.base
    started = time.monotonic()
    result = solve(
        question.graph,
        limit_bytes,
        settings.planner,
        max(0.1, settings.time_limit_seconds / MOST_ROUNDS),
        settings.seed,
    )
    solve_seconds = time.monotonic() - started
    execution = replace(base.execution, schedule=result.schedule)
    plan = replace(
        base,
        planner=settings.planner,
        memory_budget_bytes=settings.memory_budget_bytes,
        execution=execution,
        estimate=_estimate(base.estimate, question.graph, result),
        solve_result=_solve_result(base.solve_result, result),
        decisions=tuple(
            replace(d, residency="recompute") if u in execution.recomputed else d
            for u, d in enumerate(base.decisions)
        ),
        origin=None,
        progress=(),
    )
    compiled = None if settings.verify is None else compile_for(settings.verify, plan.step)
    last = Round(
        limit_bytes,
        settings.memory_budget_bytes - limit_bytes,
        result.peak_bytes,
        None if compiled is None else compiled.peak_bytes,
        solve_seconds,
        0.0 if compiled is None else compiled.compile_seconds,
    )
    plan = replace(plan, compiled=compiled, rounds=(*before, last))
    return replace(plan, notes=notes(plan))


def _estimate(base: Estimate, graph: RematGraph, result: RematResult) -> Estimate:
    """Time and memory as simulated; `held` is left empty."""
    again_seconds = result.compute_seconds - graph.once_seconds
    memory = bytes_by_unit(result.schedule.steps, simulate(graph, result.schedule).memory_bytes)
    return replace(
        base,
        step_seconds=base.step_seconds + again_seconds,
        recompute_seconds=again_seconds,
        peak_bytes=result.peak_bytes,
        peak_unit=memory.index(max(memory)) if memory else 0,
        memory_bytes=memory,
        held=(),
    )


def bytes_by_unit(steps: Sequence[int], memory: Sequence[int]) -> tuple[int, ...]:
    """The most that is held in any run of each unit."""
    found: dict[int, int] = {}
    for unit, held in zip(steps, memory, strict=True):
        found[unit] = max(held, found.get(unit, 0))
    return tuple(found[unit] for unit in sorted(found))


def _solve_result(base: SolveResult, result: RematResult) -> SolveResult:
    """The planner's outcome; the bound is the time of computing everything once."""
    return replace(
        base,
        status=result.status,
        objective=result.compute_seconds,
        bound=result.bound_seconds,
        seconds=result.seconds,
        solver=result.planner,
        peak_bytes=result.peak_bytes,
        message="",
        iterations=result.iterations,
        deterministic=result.deterministic,
    )


def _not_met(nearest: Plan, settings: "Settings") -> BudgetNotMetError:
    peak_bytes = nearest.peak_bytes
    return BudgetNotMetError(
        f"No schedule met {format_bytes(settings.memory_budget_bytes)} as compiled; the nearest "
        f"needs {format_bytes(peak_bytes)}.",
        cause="XLA holds more than the schedule asks for.",
        suggestion=f"memory_budget={peak_bytes}, which that plan meets.",
        plan=nearest,
        least_peak_bytes=peak_bytes,
    )
