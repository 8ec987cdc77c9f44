"""Plans by the paper's own models: "kiwi-full" and "kiwi-reduced".

1. The step's strategies and reshardings become a `ShardedGraph` (`kiwi.strategy.sharded_graph`).
2. The model is solved for the budget; its schedule and strategies are simulated, emitted and
   compiled as any plan.
3. While the compiled peak is over the budget, the limit is lowered by the excess, and the model
   solved again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError
from kiwi.plan.budget import format_bytes
from kiwi.plan.estimate import Estimate
from kiwi.plan.loop import plan_of
from kiwi.plan.notes import notes
from kiwi.plan.one_device import bytes_by_unit
from kiwi.plan.plan import Plan
from kiwi.plan.planners import planner_named
from kiwi.plan.rounds import Round
from kiwi.plan.targets import compile_for
from kiwi.plan.translate import copies_that_follow
from kiwi.solver import SolveResult, SolveStatus
from kiwi.solver.formulations import Answer, ShardedGraph, solve_formulation
from kiwi.solver.formulations.solve import DEFAULT_SOLVER, PROGRAM_SOLVERS
from kiwi.solver.schedule import Schedule
from kiwi.strategy.build import PlanningProblem
from kiwi.strategy.sharded_graph import sharded_graph

if TYPE_CHECKING:
    from kiwi.plan.planner import Settings, Traced

MOST_ROUNDS = 4
"""How many schedules are compiled at most."""


def plan_formulated(traced: "Traced", planning: PlanningProblem, settings: "Settings") -> Plan:
    """The first schedule whose program, compiled for `settings.verify`, is within the budget.

    **Arguments:**

    - `planning`: the step without recomputation and without a limit.

    **Raises:** `InfeasibleBudgetError`, `NoPlanFoundError`; `BudgetNotMetError` if none fits as
    compiled.
    """
    graph = sharded_graph(planning)
    limit_bytes, rounds, nearest = settings.memory_budget_bytes, (), None
    for _ in range(MOST_ROUNDS):
        try:
            answer = _answer(graph, limit_bytes, settings)
        except (InfeasibleBudgetError, NoPlanFoundError):
            if nearest is None:
                raise
            break
        plan = _compiled(_plan(traced, planning, answer, settings), limit_bytes, rounds, settings)
        if settings.verify is None or plan.fits:
            return plan
        rounds = plan.rounds
        nearest = plan if nearest is None else min(nearest, plan, key=lambda p: p.peak_bytes)
        limit_bytes -= plan.peak_bytes - settings.memory_budget_bytes
        if limit_bytes <= 0:
            break
    assert nearest is not None
    raise _not_met(nearest, settings)


def _answer(graph: ShardedGraph, limit_bytes: int, settings: "Settings") -> Answer:
    answer = solve_formulation(
        graph,
        limit_bytes,
        planner_named(settings.planner).model,
        solver=settings.solver if settings.solver in PROGRAM_SOLVERS else DEFAULT_SOLVER,
        time_limit_seconds=settings.time_limit_seconds / MOST_ROUNDS,
        seed=settings.seed,
        gap=settings.gap,
    )
    if answer.status is SolveStatus.INFEASIBLE:
        raise InfeasibleBudgetError(
            f"The model of {settings.planner!r} has no solution in {format_bytes(limit_bytes)}.",
            cause=answer.message,
            suggestion='A larger memory_budget, or planner="joint", which knows more.',
        )
    if answer.priced is None:
        raise NoPlanFoundError(
            f"{settings.planner!r} found no plan in {settings.time_limit_seconds:g} s.",
            cause=f"The model of {len(graph.computing)} operators is large for {answer.solver}.",
            suggestion='A larger time_limit_seconds, or planner="joint".',
        )
    return answer


def _plan(
    traced: "Traced", planning: PlanningProblem, answer: Answer, settings: "Settings"
) -> Plan:
    assert answer.strategies is not None and answer.schedule is not None
    # Without recomputation each unit has one residency: options are strategies.
    solution = copies_that_follow(planning, answer.strategies)
    plan = plan_of(traced, planning, _solve_result(solution, answer), settings)
    first = len(planning.sources)
    schedule = Schedule(tuple(i - first for i in answer.schedule.steps))
    execution = replace(plan.execution, schedule=schedule)
    decisions = tuple(
        replace(d, residency="recompute") if u in execution.recomputed else d
        for u, d in enumerate(plan.decisions)
    )
    estimate = _estimate(plan.estimate, schedule.steps, answer)
    return replace(plan, execution=execution, decisions=decisions, estimate=estimate)


def _solve_result(solution: tuple[int, ...], answer: Answer) -> SolveResult:
    assert answer.priced is not None
    return SolveResult(
        answer.status,
        solution,
        answer.seconds,
        answer.bound_seconds,
        answer.solve_seconds,
        answer.solver,
        answer.priced.peak_bytes,
        answer.message,
        deterministic=answer.status is SolveStatus.OPTIMAL,
    )


def _estimate(base: Estimate, steps: Sequence[int], answer: Answer) -> Estimate:
    """Time and memory as simulated; `held` is left empty."""
    assert answer.priced is not None
    memory = bytes_by_unit(steps, answer.priced.memory_bytes)
    return replace(
        base,
        step_seconds=answer.seconds,
        recompute_seconds=max(0.0, answer.seconds - base.step_seconds),
        peak_bytes=answer.priced.peak_bytes,
        peak_unit=memory.index(max(memory)) if memory else 0,
        memory_bytes=memory,
        held=(),
    )


def _compiled(
    plan: Plan, limit_bytes: int, before: tuple[Round, ...], settings: "Settings"
) -> Plan:
    compiled = None if settings.verify is None else compile_for(settings.verify, plan.step)
    last = Round(
        limit_bytes,
        settings.memory_budget_bytes - limit_bytes,
        plan.estimate.peak_bytes,
        None if compiled is None else compiled.peak_bytes,
        plan.solve_result.seconds,
        0.0 if compiled is None else compiled.compile_seconds,
    )
    plan = replace(plan, compiled=compiled, rounds=(*before, last))
    return replace(plan, notes=notes(plan))


def _not_met(nearest: Plan, settings: "Settings") -> BudgetNotMetError:
    peak_bytes = nearest.peak_bytes
    return BudgetNotMetError(
        f"No schedule met {format_bytes(settings.memory_budget_bytes)} as compiled; the nearest "
        f"needs {format_bytes(peak_bytes)}.",
        cause="XLA holds more than the model knows of, such as operands in another layout.",
        suggestion=f'memory_budget={peak_bytes}, which that plan meets, or planner="joint".',
        plan=nearest,
        least_peak_bytes=peak_bytes,
    )
