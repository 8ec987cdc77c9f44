"""How fast a plan could be at best: the solver's bound after little work."""

from dataclasses import replace

from kiwi.options import Settings
from kiwi.planners.equal_layers import EqualLayers
from kiwi.planners.refusals import infeasible_budget
from kiwi.planners.registry import planner_named
from kiwi.planners.tools import Tools
from kiwi.problem.step import StepToPlan
from kiwi.solver import SolveStatus

SHARE = 0.1
"""Of the work for a plan. More hardly raises the bound: what is left is mostly rounding."""


def proven_bound(step: StepToPlan, settings: Settings) -> float:
    """Seconds below which no solution of the planner's problem is; 0 of a planner without one.

    Copies of operands that a plan keeps beside its solution (`kiwi.problem.kept_copies`) may take
    it a little below.

    **Raises:** `InfeasibleBudgetError` where no plan is predicted to meet the budget.
    """
    planner, budget_bytes = planner_named(settings.planner), settings.memory_budget_bytes
    planner.check(settings.mesh)
    start = planner.start_for(step, budget_bytes, settings)
    if start is None:
        return 0.0
    tools = Tools.of(settings).unchecked.with_settings(on_progress=None).part(SHARE)
    problem = replace(start.problem.problem, limit_bytes=budget_bytes)
    result = EqualLayers(start.problem, tools).solve(problem, tools.allowance, None)
    if result.status is SolveStatus.INFEASIBLE:
        raise infeasible_budget(budget_bytes, result)
    return max(0.0, result.bound)
