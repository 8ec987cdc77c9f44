"""Sharding and recomputation together. If the search finds no plan alone, it begins with a
baseline's plan.

The residencies of "joint" are a selection (`kiwi.memory.residency.MAX_TIMES`), and it has many more
options than a baseline. Close to the least possible memory its search may end without a plan, or
with programs just over the budget, while a baseline has a plan. Then

1. the baselines plan the step for the same budget, or for less by the excess of those programs;
2. the recomputation of the fastest of them, with its times, is offered to "joint"
   (`kiwi.problem.build.Fixed.offered`), so that its plan is a solution of that problem
   (`kiwi.problem.translation.Choices`). Short searches end worse if offered the recomputation of
   all baselines;
3. the search begins with that plan, and never ends behind it.

If values may be offloaded to the host, the step is planned without offloading first, under half of
the allowance. The search begins with that plan, and the faster of the two is the answer.
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
    """Sharding and recomputation of each operator as one choice."""

    recomputes: ClassVar[bool] = True
    heeds_hints: ClassVar[bool] = True
    opens_loops: ClassVar[bool] = True
    offloads: ClassVar[bool] = True

    @property
    def baselines(self) -> tuple[ProblemPlanner, ...]:
        """The planners with whose plans it may begin: every registered planner that offers them."""
        registered = planners().values()
        return tuple(p for p in registered if isinstance(p, ProblemPlanner) and p.is_start)

    def plan(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None = None
    ) -> Plan:
        """See `Planner.plan`."""
        asks = any(p.hint.offload for placed in step.program.hints.values() for p in placed)
        if start is not None or asks or not self.may_offload(tools.settings):
            return super().plan(step, budget_bytes, tools, start)
        tools = tools.with_settings(memory_budget_bytes=budget_bytes)
        # The search has all work, as without a host, so that no plan is slower than that one.
        plain = self._without_offloading(step, tools)
        half = tools.part(shares.OFFLOADING_SHARE)
        begun = None if plain is None else self._begun_with(plain, step, half)
        try:
            with tools.history.within(WITH_OFFLOADING):
                found = super().plan(step, budget_bytes, half, begun)
        except (InfeasibleBudgetError, NoPlanFoundError):
            if plain is None:
                raise
            return plain
        return found if plain is None or gains(found, plain) else plain

    def _without_offloading(self, step: StepToPlan, tools: Tools) -> Plan | None:
        """The plan that offloads no value; None if none is found to fit, with arguments on the host
        within the host's budget."""
        own = tools.with_settings(host_budget_bytes=None)
        budget_bytes = own.settings.memory_budget_bytes
        start = Start(self.formulate(step, budget_bytes, own.settings))
        try:
            with tools.history.within(WITHOUT_OFFLOADING):
                found = super().plan(step, budget_bytes, own, start)
        except (InfeasibleBudgetError, NoPlanFoundError):
            return None
        found = replace(found, host_limit_bytes=tools.settings.host_limit_bytes)
        return found if found.fits else None

    def _begun_with(self, plain: Plan, step: StepToPlan, tools: Tools) -> Start | None:
        """The problem with offloading, begun with a plan without it."""
        if plain.origin is None or plain.execution.units is not step.units:
            return None
        problem = self.formulate(step, tools.settings.memory_budget_bytes, tools.settings)
        solution = plain.breakdown.choices.solution_of(problem)
        return None if solution is None else Start(problem, solution)

    def other_start(self, error: Refusal, step: StepToPlan, tools: Tools) -> Start | None:
        """The fastest baseline's plan within the budget; the baselines share half of the work."""
        budget_bytes = tools.settings.memory_budget_bytes
        if not may_help(error, budget_bytes):
            return None
        found = sorted(self._baseline_choices(step, tools), key=lambda each: each[0])
        choices = [choices for _, choices in found]
        return self.start_from(choices, step, budget_bytes, tools.settings)

    def start_from(
        self, choices: Sequence[Choices], step: StepToPlan, budget_bytes: int, settings: Settings
    ) -> Start | None:
        """The problem in which the fastest fitting plan of some plans is a solution, and that
        solution."""
        for each in choices:
            problem = self.formulate(step, budget_bytes, settings, offered=offered([each]))
            solution = fastest_start(problem, [each], budget_bytes)
            if solution is not None:
                return Start(problem, solution)
        return None

    def _baseline_choices(self, step: StepToPlan, tools: Tools) -> Iterator[tuple[float, Choices]]:
        """For each baseline with a plan, the plan's seconds and its choices."""
        baselines = self.baselines
        own = tools.unchecked.part(shares.BASELINES_SHARE / len(baselines))
        for baseline in baselines:
            if step.program.loops and not baseline.opens_loops:
                continue
            try:
                budget_bytes = own.settings.memory_budget_bytes
                problem = baseline.formulate(step, budget_bytes, own.settings)
                plan = baseline.search(step, own, Start(problem))
            except KiwiError:  # The baseline has no plan, or cannot take the step; another one may.
                continue
            assert plan.solve_result.solution is not None
            choices = Choices.of(problem, plan.solve_result.solution)
            yield plan.estimate.step_seconds, choices


def may_help(error: Refusal, budget_bytes: int) -> bool:
    """Whether baselines are worth asking after "joint" found no plan."""
    if isinstance(error, BudgetNotMetError):
        return error.plan.peak_bytes <= shares.BASELINES_CLOSE * budget_bytes
    least = error.least_peak_bytes if isinstance(error, InfeasibleBudgetError) else None
    return least is None or least <= shares.BASELINES_HOPELESS * budget_bytes


def fastest_start(
    problem: PlanningProblem, choices: Sequence[Choices], budget_bytes: int
) -> tuple[int, ...] | None:
    """The fastest of several plans that fits, as a solution of a problem; None if none does."""
    limited = replace(problem.problem, limit_bytes=budget_bytes)
    starts = [start for each in choices if (start := each.solution_of(problem)) is not None]
    for _, start in fitting(limited, starts):
        if estimate_solution(Solved(problem, start)).peak_bytes <= budget_bytes:
            return start
    return None
