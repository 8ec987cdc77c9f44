"""The planner "two-stage": MAP's two solvers (Liu et al., 2023, section 5.3).

1. The step is sharded, without recomputation, under `BUDGETS` growing budgets: the memory budget
   times 1, (1 + α), (1 + α)², ... A larger budget allows faster shardings that hold more.
2. Each sharding is a graph for one device, with its communication (`sharded_remat_graph`). The
   graph is divided into a chain, and `rotor` finds what to recompute under the memory budget
   itself.
3. The fastest pair is emitted and compiled. While the program is over the budget, the second stage
   is repeated under a lower limit.

A sharding that fits as it is needs no second stage. The paper leaves α open.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kiwi.campaign.closed_loop import ClosedLoop
from kiwi.campaign.limit_search import LimitSearch
from kiwi.campaign.tools import Tools, spent
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError
from kiwi.literature.planners.remat_graph import sharded_remat_graph, smallest_remat_graph
from kiwi.literature.remat import RematGraph, simulate
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.rotor import rotor
from kiwi.planners.planner import Planner, with_schedule
from kiwi.plans.plan import Plan
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved, Start
from kiwi.problem.step import StepToPlan
from kiwi.sizes import format_bytes
from kiwi.solver import SolveResult, SolveStatus
from kiwi.solver.effort import Allowance
from kiwi.solver.settle import settled

BUDGETS = 10
GROWTH = 0.3
"""α of the first stage's budgets. The largest budget is (1 + α)⁹ = 10.6 times the memory budget."""


@dataclass(frozen=True, eq=False)
class Sharded:
    """A sharding: the plan without recomputation, and the graph of one device's part."""

    plan: Plan
    solved: Solved
    graph: RematGraph


@dataclass(frozen=True)
class TwoStage(Planner):
    """Sharding under growing budgets, then recomputation of each sharding's chain."""

    def plan(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None = None
    ) -> Plan:
        """Returns the plan of the fastest pair of a sharding and a schedule that fits as compiled.

        **Raises:** `InfeasibleBudgetError` with the smallest peak of all pairs and the largest
        working set, `BudgetNotMetError` if no pair fits as compiled, `InvalidProblemError` if the
        step has no backward pass.
        """
        origin = start or Start(self.formulate(step, budget_bytes, tools.settings))
        try:
            return self._planned(step, origin.problem, budget_bytes, tools)
        except BudgetNotMetError:
            raise
        except InfeasibleBudgetError as error:
            bound_bytes = least_bound_bytes(origin.problem)
            raise _infeasible(budget_bytes, error.least_peak_bytes, bound_bytes) from error

    def _planned(
        self, step: StepToPlan, problem: PlanningProblem, budget_bytes: int, tools: Tools
    ) -> Plan:
        results = list(first_stage(problem, budget_bytes, tools))
        shardings = []
        for result in results:
            if result.solution is not None:
                solved = Solved(problem, result.solution)
                plan = self.plan_of(step, solved, result, budget_bytes)
                shardings.append(Sharded(plan, solved, sharded_remat_graph(solved)))
        if not shardings:
            peaks = [
                result.least_peak_bytes for result in results if result.least_peak_bytes is not None
            ]
            raise _infeasible(budget_bytes, min(peaks, default=None))
        search = LimitSearch(
            lambda limit_bytes: self._fastest_pair(shardings, limit_bytes),
            budget_bytes,
            cause="XLA holds more than the schedule asks for.",
            instead=', or planner="joint"',
        )
        return ClosedLoop(self, search, budget_bytes, tools).run()

    def _fastest_pair(self, shardings: Sequence[Sharded], limit_bytes: int) -> Plan:
        """Returns the plan of the fastest sharding with its best schedule within the limit.

        Raises `InfeasibleBudgetError`.
        """
        plans: list[Plan] = []
        least_bytes: list[int] = []
        for sharded in shardings:
            try:
                plans.append(_second_stage(sharded, limit_bytes))
            except InfeasibleBudgetError as error:
                least_bytes += [] if error.least_peak_bytes is None else [error.least_peak_bytes]
        if not plans:
            raise _infeasible(limit_bytes, min(least_bytes, default=None))
        return min(plans, key=lambda plan: plan.estimate.step_seconds)


TWO_STAGE = TwoStage(
    "two-stage", "sharding for growing budgets, then recomputation by rotor (Liu et al., 2023)"
)


def least_bound_bytes(planning: PlanningProblem) -> int:
    """Returns a lower bound on the peak of every sharding under every schedule, in bytes.

    The bound is the largest working set when every value is sharded as far as possible. Results may
    take the place of operands, so only the larger of both counts.
    """
    graph = smallest_remat_graph(planning)

    def computed_bytes(values: Sequence[int]) -> int:
        return sum(graph.values[value].size_bytes for value in values if graph.producer[value] >= 0)

    return graph.resident_bytes + max(
        (
            max(computed_bytes(operator.inputs), computed_bytes(operator.outputs))
            + operator.temporary_bytes
            for operator in graph.operators
        ),
        default=0,
    )


def growing_budgets(budget_bytes: int) -> list[int]:
    """Returns the budgets of the first stage, in ascending order."""
    return [int(budget_bytes * (1 + GROWTH) ** n) for n in range(BUDGETS)]


def first_stage(problem: PlanningProblem, budget_bytes: int, tools: Tools) -> Iterator[SolveResult]:
    """Yields different shardings as the budget grows, until the budget no longer binds.

    A result without a solution stands for a budget for which no sharding was found. All results
    have the bound of sharding without a budget, which also holds for every schedule of the second
    stage.
    """
    budgets = growing_budgets(budget_bytes)
    free = _sharded(problem, None, tools.allowance.part(1 / (len(budgets) + 1)), tools, None)
    left = tools.allowance.less(spent(free))
    last: tuple[int, ...] | None = None
    for number, limit_bytes in enumerate(budgets):
        result = free
        if free.peak_bytes is None or free.peak_bytes > limit_bytes:
            allowed = left.part(1 / (len(budgets) - number))
            result = _sharded(problem, limit_bytes, allowed, tools, last)
            left = left.less(spent(result))
        if result.solution is None or result.solution != last:
            yield replace(result, bound=free.bound)
            last = result.solution or last
        if result is free:
            return


def _sharded(
    problem: PlanningProblem,
    limit_bytes: int | None,
    allowed: Allowance,
    tools: Tools,
    warm_start: Sequence[int] | None,
) -> SolveResult:
    """Returns the fastest sharding found within the limit; among equally fast ones, the smallest in
    memory."""
    limited = replace(problem.problem, limit_bytes=limit_bytes)
    result = tools.solve(limited, allowed, warm_start)
    if result.solution is None:
        return result
    return replace(result, solution=settled(limited, result.solution))


def _second_stage(sharded: Sharded, limit_bytes: int) -> Plan:
    """Returns the plan of the sharding as it is, or with the schedule that `rotor` finds.

    Raises `InfeasibleBudgetError` with the smallest peak of the sharding.
    """
    plan, started = sharded.plan, time.monotonic()
    message = "The first stage met the limit."
    if plan.estimate.peak_bytes > limit_bytes:
        # Rotor is a dynamic program without random choices, which no time limit ends.
        finding = rotor(Task(sharded.graph, limit_bytes, math.inf, math.inf, 0))
        assert finding.schedule is not None
        peak_bytes = simulate(sharded.graph, finding.schedule).peak_bytes
        if peak_bytes > limit_bytes:
            raise _infeasible(limit_bytes, min(peak_bytes, plan.estimate.peak_bytes))
        plan = with_schedule(plan, sharded.solved, finding.schedule)
        message = "Recomputation by rotor, of the sharding of a larger budget."
    answer = replace(
        plan.solve_result,
        status=SolveStatus.FEASIBLE,
        objective=plan.estimate.step_seconds,
        seconds=plan.solve_result.seconds + time.monotonic() - started,
        solver=plan.planner,
        peak_bytes=plan.estimate.peak_bytes,
        message=message,
    )
    return replace(plan, solve_result=answer)


def _infeasible(
    limit_bytes: int, least_bytes: int | None, bound_bytes: int | None = None
) -> InfeasibleBudgetError:
    cause = "The first stage's shardings hold too much for any persistent schedule."
    if bound_bytes is not None:
        cause += f" Every plan needs {format_bytes(bound_bytes)} at least, the largest working set."
    suggestion = 'planner="joint", or a larger memory_budget.'
    if least_bytes is not None:
        suggestion = f"memory_budget={least_bytes}, which a pair meets, or {suggestion}"
    return InfeasibleBudgetError(
        f"No sharding with a schedule of its chain fits {format_bytes(limit_bytes)}.",
        cause=cause,
        suggestion=suggestion,
        least_peak_bytes=least_bytes,
        least_peak_bound_bytes=bound_bytes,
    )
