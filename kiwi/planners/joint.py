"""Sharding and recomputation together ("joint"). If the search finds no plan by itself, it begins
with a baseline's plan.

"joint" offers only some of all residencies (`kiwi.memory.residency.MAX_TIMES`), and has many more
options than a baseline. Close to the least possible memory, its search may end without a plan, or
with programs just over the budget, although a baseline has a plan. In that case:

1. The baselines plan the step for the same budget, lowered by the excess of such programs.
2. The residencies of the fastest baseline's plan are offered to "joint" as well
   (`kiwi.problem.build.Fixed.offered`), so that this plan is a solution of its problem
   (`kiwi.problem.translation.Choices`). The residencies of only one baseline are offered, because
   short searches end worse with more options.
3. The search begins with that plan, and never ends with a slower one.

If values may be offloaded to the host, the step is first planned without offloading, with the whole
allowance. The search with offloading begins with that plan and has half of the allowance. The
faster plan of the two is the answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from kiwi.campaign import shares
from kiwi.campaign.attempts import WITH_OFFLOADING, WITHOUT_OFFLOADING
from kiwi.campaign.offloading import gains
from kiwi.campaign.proposer import Refusal
from kiwi.campaign.tools import Tools
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, KiwiError, NoPlanFoundError
from kiwi.options import Settings
from kiwi.planners.problem_planner import ProblemPlanner
from kiwi.planners.registry import planners
from kiwi.plans.estimate import estimate_solution
from kiwi.plans.plan import Plan
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved, Start
from kiwi.problem.step import StepToPlan
from kiwi.problem.translation import Choices, offered
from kiwi.solver.evaluate import fitting


@dataclass(frozen=True)
class Joint(ProblemPlanner):
    """Chooses the sharding and the residency of each operator together."""

    recomputes: ClassVar[bool] = True
    heeds_hints: ClassVar[bool] = True
    opens_loops: ClassVar[bool] = True
    offloads: ClassVar[bool] = True

    @property
    def baselines(self) -> tuple[ProblemPlanner, ...]:
        """The registered planners that can supply the search with a plan to begin with
        (`is_start`)."""
        registered = planners().values()
        return tuple(
            planner
            for planner in registered
            if isinstance(planner, ProblemPlanner) and planner.is_start
        )

    def plan(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None = None
    ) -> Plan:
        """Returns the plan of a step, as `Planner.plan` does. If values may be offloaded, it is the
        faster one of a plan without offloading and a plan with it."""
        asks = any(pin.hint.offload for placed in step.program.hints.values() for pin in placed)
        if start is not None or asks or not self.may_offload(tools.settings):
            return super().plan(step, budget_bytes, tools, start)
        tools = tools.with_settings(memory_budget_bytes=budget_bytes)
        # This search has the whole allowance, so that no host budget makes the answer slower.
        plain = self._without_offloading(step, tools)
        half = tools.part(shares.OFFLOADING_SHARE)
        plain_start = None if plain is None else self._begun_with(plain, step, half)
        try:
            with tools.history.within(WITH_OFFLOADING):
                offloading = super().plan(step, budget_bytes, half, plain_start)
        except (InfeasibleBudgetError, NoPlanFoundError):
            if plain is None:
                raise
            return plain
        return offloading if plain is None or gains(offloading, plain) else plain

    def _without_offloading(self, step: StepToPlan, tools: Tools) -> Plan | None:
        """Returns the plan without offloaded values; None if none is found that fits, including
        arguments on the host within the host's budget."""
        device_tools = tools.with_settings(host_budget_bytes=None)
        budget_bytes = device_tools.settings.memory_budget_bytes
        start = Start(self.formulate(step, budget_bytes, device_tools.settings))
        try:
            with tools.history.within(WITHOUT_OFFLOADING):
                plan = super().plan(step, budget_bytes, device_tools, start)
        except (InfeasibleBudgetError, NoPlanFoundError):
            return None
        plan = replace(plan, host_limit_bytes=tools.settings.host_limit_bytes)
        return plan if plan.fits else None

    def _begun_with(self, plain: Plan, step: StepToPlan, tools: Tools) -> Start | None:
        """Returns the problem with offloading, with a plan without offloading as its first
        solution; None if that plan is no solution of the problem."""
        if plain.origin is None or plain.execution.units is not step.units:
            return None
        problem = self.formulate(step, tools.settings.memory_budget_bytes, tools.settings)
        solution = plain.breakdown.choices.solution_of(problem)
        return None if solution is None else Start(problem, solution)

    def other_start(self, error: Refusal, step: StepToPlan, tools: Tools) -> Start | None:
        """Returns a start with the fastest baseline's plan within the budget; None if there is
        none. The baselines together spend at most `shares.BASELINES_SHARE` of the work."""
        budget_bytes = tools.settings.memory_budget_bytes
        if not may_help(error, budget_bytes):
            return None
        plans = sorted(self._baseline_choices(step, tools), key=lambda plan: plan[0])
        choices = [choices for _, choices in plans]
        return self.start_from(choices, step, budget_bytes, tools.settings)

    def start_from(
        self, choices: Sequence[Choices], step: StepToPlan, budget_bytes: int, settings: Settings
    ) -> Start | None:
        """Returns a problem that has the first fitting plan as a solution, with that solution; None
        if no plan fits.

        - `choices`: the choices of the plans, the fastest plan first.
        """
        for plan in choices:
            problem = self.formulate(step, budget_bytes, settings, offered=offered([plan]))
            solution = fastest_start(problem, [plan], budget_bytes)
            if solution is not None:
                return Start(problem, solution)
        return None

    def _baseline_choices(self, step: StepToPlan, tools: Tools) -> Iterator[tuple[float, Choices]]:
        """Yields, for each baseline with a plan, the plan's seconds and its choices."""
        baselines = self.baselines
        baseline_tools = tools.unchecked.part(shares.BASELINES_SHARE / len(baselines))
        for baseline in baselines:
            if step.program.loops and not baseline.opens_loops:
                continue
            try:
                budget_bytes = baseline_tools.settings.memory_budget_bytes
                problem = baseline.formulate(step, budget_bytes, baseline_tools.settings)
                plan = baseline.search(step, baseline_tools, Start(problem))
            except KiwiError:  # The baseline has no plan, or cannot take the step; another one may.
                continue
            assert plan.solve_result.solution is not None
            choices = Choices.of(problem, plan.solve_result.solution)
            yield plan.estimate.step_seconds, choices


def may_help(error: Refusal, budget_bytes: int) -> bool:
    """Whether baselines are worth trying after "joint" found no plan, by the excess of its programs
    or by the least peak found.

    - `error`: the refusal of "joint".
    """
    if isinstance(error, BudgetNotMetError):
        return error.plan.peak_bytes <= shares.BASELINES_CLOSE * budget_bytes
    least = error.least_peak_bytes if isinstance(error, InfeasibleBudgetError) else None
    return least is None or least <= shares.BASELINES_HOPELESS * budget_bytes


def fastest_start(
    problem: PlanningProblem, choices: Sequence[Choices], budget_bytes: int
) -> tuple[int, ...] | None:
    """Returns the fastest plan that fits, as a solution of a problem; None if none fits.

    - `choices`: the choices of the plans. Plans that are no solutions of the problem are ignored.
    """
    limited = replace(problem.problem, limit_bytes=budget_bytes)
    starts = [start for plan in choices if (start := plan.solution_of(problem)) is not None]
    for _, start in fitting(limited, starts):
        if estimate_solution(Solved(problem, start)).peak_bytes <= budget_bytes:
            return start
    return None
