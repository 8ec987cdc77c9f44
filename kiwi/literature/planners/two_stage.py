"""The planner "two-stage": MAP's two solvers (Liu et al., 2023, section 5.3).

1. The step is sharded, without recomputation, under `BUDGETS` growing budgets: the memory budget
   times 1, (1 + α), (1 + α)², ... A larger one allows faster shardings that hold more.
2. Each sharding is a graph for one device, with its communication (`sharded_remat_graph`). It is
   divided into a chain, and `rotor` finds what to recompute under the memory budget itself.
3. The fastest pair is emitted and compiled; while that is over the budget, the second stage is
   repeated under a lower limit.

A sharding that fits as it is needs no second stage. α is left open in the text.
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
"""α: the largest budget of the first stage is 1.3⁹ = 10.6 times the memory budget."""


@dataclass(frozen=True, eq=False)
class Sharded:
    """A sharding: the plan that recomputes nothing, and the graph of one device's part of it."""

    plan: Plan
    solved: Solved
    graph: RematGraph


@dataclass(frozen=True)
class TwoStage(Planner):
    """Sharding under growing budgets, then recomputation of each sharding's chain."""

    def plan(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None = None
    ) -> Plan:
        """The fastest pair of a sharding and a schedule that fits, as compiled.

        **Raises:** `InfeasibleBudgetError` with the smallest peak of all pairs and the largest
        working set, `BudgetNotMetError` if none fits as compiled, `InvalidProblemError` if the step
        has no backward pass.
        """
        own = start or Start(self.formulate(step, budget_bytes, tools.settings))
        try:
            return self._planned(step, own.problem, budget_bytes, tools)
        except BudgetNotMetError:
            raise
        except InfeasibleBudgetError as error:
            bound_bytes = least_bound_bytes(own.problem)
            raise _infeasible(budget_bytes, error.least_peak_bytes, bound_bytes) from error

    def _planned(
        self, step: StepToPlan, problem: PlanningProblem, budget_bytes: int, tools: Tools
    ) -> Plan:
        found = list(first_stage(problem, budget_bytes, tools))
        shardings = []
        for result in found:
            if result.solution is not None:
                solved = Solved(problem, result.solution)
                plan = self.plan_of(step, solved, result, budget_bytes)
                shardings.append(Sharded(plan, solved, sharded_remat_graph(solved)))
        if not shardings:
            peaks = [r.least_peak_bytes for r in found if r.least_peak_bytes is not None]
            raise _infeasible(budget_bytes, min(peaks, default=None))
        search = LimitSearch(
            lambda limit_bytes: self._fastest_pair(shardings, limit_bytes),
            budget_bytes,
            cause="XLA holds more than the schedule asks for.",
            instead=', or planner="joint"',
        )
        return ClosedLoop(self, search, budget_bytes, tools).run()

    def _fastest_pair(self, shardings: Sequence[Sharded], limit_bytes: int) -> Plan:
        """The fastest sharding with its best schedule within the limit; raises
        `InfeasibleBudgetError`."""
        found: list[Plan] = []
        least_bytes: list[int] = []
        for sharded in shardings:
            try:
                found.append(_second_stage(sharded, limit_bytes))
            except InfeasibleBudgetError as error:
                least_bytes += [] if error.least_peak_bytes is None else [error.least_peak_bytes]
        if not found:
            raise _infeasible(limit_bytes, min(least_bytes, default=None))
        return min(found, key=lambda plan: plan.estimate.step_seconds)


TWO_STAGE = TwoStage(
    "two-stage", "sharding for growing budgets, then recomputation by rotor (Liu et al., 2023)"
)


def least_bound_bytes(planning: PlanningProblem) -> int:
    """No sharding peaks lower under any schedule: the largest working set, as sharded as can be.

    Results may take the place of operands, so that only the larger of both counts.
    """
    graph = smallest_remat_graph(planning)

    def computed_bytes(values: Sequence[int]) -> int:
        return sum(graph.values[v].size_bytes for v in values if graph.producer[v] >= 0)

    return graph.resident_bytes + max(
        (
            max(computed_bytes(each.inputs), computed_bytes(each.outputs)) + each.temporary_bytes
            for each in graph.operators
        ),
        default=0,
    )


def growing_budgets(budget_bytes: int) -> list[int]:
    """The budgets of the first stage."""
    return [int(budget_bytes * (1 + GROWTH) ** n) for n in range(BUDGETS)]


def first_stage(problem: PlanningProblem, budget_bytes: int, tools: Tools) -> Iterator[SolveResult]:
    """Different shardings as the budget grows, until it no longer binds; those budgets that none
    was found for have no solution.

    All have the bound of sharding without a budget, which holds for whatever follows.
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
    """The fastest sharding found within the limit; of equals the one that holds least."""
    limited = replace(problem.problem, limit_bytes=limit_bytes)
    result = tools.solve(limited, allowed, warm_start)
    if result.solution is None:
        return result
    return replace(result, solution=settled(limited, result.solution))


def _second_stage(sharded: Sharded, limit_bytes: int) -> Plan:
    """The sharding as it is, or with the schedule that `rotor` finds; raises
    `InfeasibleBudgetError` with the smallest peak of the sharding."""
    plan, started = sharded.plan, time.monotonic()
    message = "The first stage met the limit."
    if plan.estimate.peak_bytes > limit_bytes:
        # A dynamic program without random choices: no time limit ends it.
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
