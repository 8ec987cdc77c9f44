"""Plans for one device by the planners of `kiwi.solver.remat`: recomputation and order alone.

1. The step is planned without a limit and without recomputation: what is to be scheduled.
2. A planner finds a schedule of its units within the budget.
3. Steps change places where XLA's heap would waste much (`kiwi.plan.repacking`).
4. It is emitted and compiled as any plan. While the compiled peak is over the budget, steps change
   places again: orders that need equally much compile to different peaks. Where that does not help,
   the limit is lowered by the excess, and planned again with another seed (`kiwi.plan.tightening`).
"""

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kiwi.plan.fences import fences
from kiwi.plan.loop import plan_of
from kiwi.plan.plan import Plan
from kiwi.plan.planners import planner_named
from kiwi.plan.repacking import repacked
from kiwi.plan.tightening import MOST_ROUNDS, tightened, with_schedule
from kiwi.solver import SolveResult
from kiwi.solver.outcome import conclude
from kiwi.solver.remat import RematGraph, RematResult, simulate, solve
from kiwi.solver.schedule import Schedule
from kiwi.strategy.build import PlanningProblem
from kiwi.strategy.remat_graph import one_device_strategies, remat_graph

if TYPE_CHECKING:
    from kiwi.plan.settings import Settings
    from kiwi.plan.traced import Traced

NO_LIMIT_BYTES = 2**60


def plan_one_device(traced: "Traced", planning: PlanningProblem, settings: "Settings") -> Plan:
    """The first schedule whose program, compiled for `settings.verify`, is within the budget.

    **Arguments:**

    - `planning`: the step without recomputation and without a limit.

    **Raises:** `InvalidMeshError` for several devices, `InfeasibleBudgetError` with the smallest
    budget known to be feasible and a proven bound, `BudgetNotMetError` if no schedule fits as
    compiled, `InvalidProblemError` where the planner cannot take the graph.
    """
    planner_named(settings.planner).check(settings.mesh)
    base = _keeping_all(traced, planning, settings)
    units = planning.units
    strategies = one_device_strategies(units, planning.mesh)
    # Recomputation adds few: what they hold is taken from the step as it is.
    fence_bytes = fences(base.execution).pointer_bytes
    graph = remat_graph(units, strategies, planning.fixed.target, fence_bytes)
    seconds = max(0.1, settings.time_limit_seconds / MOST_ROUNDS)
    seeds = itertools.count(settings.seed)

    def plan_within(limit_bytes: int) -> Plan:
        seed = next(seeds)
        result = solve(graph, limit_bytes, settings.planner, seconds, seed)
        return scheduled(base, graph, result, limit_bytes, seed)

    def reordered(plan: Plan, limit_bytes: int, over_bytes: int) -> Plan | None:
        return in_another_order(base, graph, plan, limit_bytes, over_bytes, next(seeds))

    cause = "XLA holds more than the schedule asks for."
    return tightened(plan_within, settings, cause=cause, varies=True, reordered=reordered)


def _keeping_all(traced: "Traced", planning: PlanningProblem, settings: "Settings") -> Plan:
    """The only solution: on one device every node has one option."""
    assert all(len(node.costs) == 1 for node in planning.problem.nodes)
    only = (0,) * len(planning.problem.nodes)
    result = conclude(planning.problem, only, -math.inf, solver=settings.planner)
    return plan_of(traced, planning, result, settings)


def scheduled(
    base: Plan, graph: RematGraph, result: RematResult, limit_bytes: int, seed: int = 0
) -> Plan:
    """The plan `base`, which recomputes nothing, under a schedule that was found for its units.

    Steps may change places, within the limit, where XLA's heap would exceed the plan's budget.
    """
    schedule = repacked(graph, result.schedule, limit_bytes, base.memory_budget_bytes, seed)
    seconds = base.estimate.step_seconds + result.compute_seconds - graph.once_seconds
    plan = replace(base, solve_result=_solve_result(base.solve_result, result))
    return _with_schedule(plan, graph, schedule, seconds)


def in_another_order(
    base: Plan, graph: RematGraph, plan: Plan, limit_bytes: int, over_bytes: int, seed: int
) -> Plan | None:
    """A plan of `scheduled` whose steps change places again; None if they stay.

    What the compiled program was over the budget, `over_bytes`, is taken off the heap aimed at.
    """
    before = plan.execution.schedule
    aimed_bytes = base.memory_budget_bytes - over_bytes
    schedule = repacked(graph, before, limit_bytes, aimed_bytes, seed)
    if schedule == before:
        return None
    plan_again = replace(base, solve_result=plan.solve_result)
    return _with_schedule(plan_again, graph, schedule, plan.estimate.step_seconds)


def _with_schedule(plan: Plan, graph: RematGraph, schedule: Schedule, seconds: float) -> Plan:
    """`plan`, which recomputes nothing, under a schedule of the graph that takes `seconds`."""
    found = simulate(graph, schedule)
    answer = replace(plan.solve_result, peak_bytes=found.peak_bytes)
    plan = replace(plan, solve_result=answer)
    return with_schedule(plan, schedule, seconds, found.peak_bytes, found.memory_bytes)


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
