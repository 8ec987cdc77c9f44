"""How fast a plan can be, after little work: what searches of configurations go by.

The solver's bound holds for every solution of the problem, in which each reader reshards its
operands for itself. Plans keep copies for later readers then (`kiwi.problem.kept_copies`), and are
faster by that: on eight H100s 5 % for four layers of GPT-3 13B. No bound knows how much. It is
measured on the solution that was found, and taken off.

Where little work finds no solution within the budget, the bound is that of the step without one:
planners then begin with what another planner recomputes (`kiwi.planners.joint`), which is another
selection of residencies, and no solution of this problem.
"""

from dataclasses import replace

from kiwi.options import Settings
from kiwi.planners.equal_layers import EqualLayers
from kiwi.planners.refusals import infeasible_budget
from kiwi.planners.registry import planner_named
from kiwi.planners.tools import Tools
from kiwi.plans.estimate import estimate_solution
from kiwi.problem.build import PlanningProblem
from kiwi.problem.kept_copies import KEPT_SHARE, kept_copies
from kiwi.problem.solved import Solved
from kiwi.problem.step import StepToPlan
from kiwi.solver import SolveResult, SolveStatus

SHARE = 0.1
"""Of the work for a plan. More hardly raises the bound: what is left is mostly rounding."""


def quick_bound(step: StepToPlan, settings: Settings) -> float:
    """Seconds that no plan is expected to take less than; 0 of a planner without a bound.

    **Raises:** `InfeasibleBudgetError` where no plan is predicted to meet the budget.
    """
    planner, budget_bytes = planner_named(settings.planner), settings.memory_budget_bytes
    planner.check(settings.mesh)
    start = planner.start_for(step, budget_bytes, settings)
    if start is None:
        return 0.0
    tools = Tools.of(settings).unchecked.with_settings(on_progress=None).part(SHARE)
    limited = _limited(start.problem, budget_bytes)
    result = _solved(limited, tools)
    if result.status is SolveStatus.INFEASIBLE:
        raise infeasible_budget(budget_bytes, result)
    if result.solution is None:
        limited = _limited(start.problem, None)
        result = _solved(limited, tools)
    return max(0.0, result.bound - _saved_seconds(limited, result, tools))


def _limited(problem: PlanningProblem, limit_bytes: int | None) -> PlanningProblem:
    return replace(problem, problem=replace(problem.problem, limit_bytes=limit_bytes))


def _solved(problem: PlanningProblem, tools: Tools) -> SolveResult:
    return EqualLayers(problem, tools).solve(problem.problem, tools.allowance, None)


def _saved_seconds(problem: PlanningProblem, result: SolveResult, tools: Tools) -> float:
    """What kept copies save of the solution; none saves nothing."""
    if result.solution is None or result.objective is None:
        return 0.0
    allowed = tools.allowance.part(KEPT_SHARE)
    kept, _ = kept_copies(problem, problem, result.solution, allowed)
    plan_seconds = estimate_solution(Solved(problem, result.solution, kept)).step_seconds
    return max(0.0, result.objective - plan_seconds)
