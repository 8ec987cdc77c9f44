"""The plan of a solution of a step's problem, before anything is compiled."""

from kiwi.emit.execution import build_execution
from kiwi.plans.breakdown import CostBreakdown, decisions
from kiwi.plans.estimate import estimate_solution
from kiwi.plans.estimate_without_barriers import estimate_as_written
from kiwi.plans.plan import Plan
from kiwi.problem.solved import Solved
from kiwi.problem.step import StepToPlan
from kiwi.solver import SolveResult


def plan_of_solution(
    planner: str, step: StepToPlan, solved: Solved, result: SolveResult, budget_bytes: int
) -> Plan:
    """Returns the plan of a solution, before anything is compiled.

    - `planner`: the name of the planner that made the solution.
    - `result`: the solver's result for the solution.
    """
    estimate = estimate_solution(solved)
    as_is = solved.problem.fixed.values
    mesh = solved.problem.mesh
    return Plan(
        mesh=mesh,
        profile=mesh.hardware.name,
        planner=planner,
        memory_budget_bytes=budget_bytes,
        estimate=estimate,
        compiled=None,
        solve_result=result,
        execution=build_execution(solved),
        traced=step,
        notes=(),
        planning_seconds=0.0,
        breakdown=CostBreakdown((), decisions(solved)),
        as_written=estimate_as_written(solved, estimate) if as_is else None,
        host_limit_bytes=solved.problem.fixed.host_limit_bytes,
    )
