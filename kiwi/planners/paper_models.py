"""Plans by the paper's own models: "kiwi-full" and "kiwi-reduced".

1. The step's strategies and reshardings become a `ShardedGraph` (`kiwi.problem.sharded_graph`).
2. The model is solved for the budget; its schedule and strategies are simulated, emitted and
   compiled as any plan.
3. While the compiled peak is over the budget, the limit is lowered by the excess, and the model
   solved again (`kiwi.planners.schedule_loop`).
"""

from kiwi.calls.traced import Traced
from kiwi.errors import InfeasibleBudgetError, NoPlanFoundError
from kiwi.options import Settings
from kiwi.planners.closed_loop import plan_of
from kiwi.planners.registry import planner_named
from kiwi.planners.schedule_loop import MOST_ROUNDS, tightened, with_schedule
from kiwi.plans.plan import Plan
from kiwi.problem.build import PlanningProblem
from kiwi.problem.sharded_graph import sharded_graph
from kiwi.problem.translation import copies_that_follow
from kiwi.sizes import format_bytes
from kiwi.solver import SolveResult, SolveStatus
from kiwi.solver.formulations import Answer, ShardedGraph, solve_formulation
from kiwi.solver.formulations.solve import DEFAULT_SOLVER, PROGRAM_SOLVERS
from kiwi.solver.schedule import Schedule


def plan_formulated(traced: Traced, planning: PlanningProblem, settings: Settings) -> Plan:
    """The first schedule whose program, compiled for `settings.verify`, is within the budget.

    **Arguments:**

    - `planning`: the step without recomputation and without a limit.

    **Raises:** `InfeasibleBudgetError`, `NoPlanFoundError`; `BudgetNotMetError` if none fits as
    compiled.
    """
    graph = sharded_graph(planning)
    return tightened(
        lambda limit: _plan(traced, planning, _answer(graph, limit, settings), settings),
        settings,
        cause="XLA holds more than the model knows of, such as operands in another layout.",
        instead=', or planner="joint"',
    )


def _answer(graph: ShardedGraph, limit_bytes: int, settings: Settings) -> Answer:
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


def _plan(traced: Traced, planning: PlanningProblem, answer: Answer, settings: Settings) -> Plan:
    assert answer.strategies is not None
    assert answer.schedule is not None and answer.priced is not None
    # Without recomputation each unit has one residency: options are strategies.
    solution = copies_that_follow(planning, answer.strategies)
    plan = plan_of(traced, planning, _solve_result(solution, answer), settings)
    first = len(planning.sources)
    schedule = Schedule(tuple(i - first for i in answer.schedule.steps))
    priced = answer.priced
    return with_schedule(plan, schedule, answer.seconds, priced.peak_bytes, priced.memory_bytes)


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
