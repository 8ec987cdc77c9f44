"""Planners whose plans are solutions of the `Problem` of the step.

1. The problem is searched (`kiwi.campaign.problem_search`), in the closed loop of all planners.
2. Where no plan is found, the search begins again from another start.
3. Where no plan is predicted to fit, the compiler has the last word: the search begins again with a
   limit above the budget, near the least peak that was found.
"""

from dataclasses import dataclass, replace

from kiwi.campaign import shares
from kiwi.campaign.closed_loop import ClosedLoop, Refusal
from kiwi.campaign.limits import limit_below
from kiwi.campaign.obvious_starts import least_peak
from kiwi.campaign.problem_search import ProblemSearch
from kiwi.campaign.refusals import blamed, raised_limits, with_least_peak
from kiwi.campaign.reordered_units import reformulated
from kiwi.campaign.tools import ProgressLog, Tools
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, NoPlanFoundError
from kiwi.planners.planner import Planner
from kiwi.plans.breakdown import build_breakdown
from kiwi.plans.plan import Plan
from kiwi.plans.record import Origin
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved, Start
from kiwi.problem.step import StepToPlan


@dataclass(frozen=True)
class ProblemPlanner(Planner):
    """A planner whose plans are solutions of `formulate`'s problem."""

    def plan(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None = None
    ) -> Plan:
        """See `Planner.plan`."""
        log = ProgressLog(tools.settings.on_progress)
        logged = tools.with_settings(on_progress=log)
        problem, plan = self._searched(step, budget_bytes, logged, start)
        solution = plan.solve_result.solution
        assert solution is not None
        settings = replace(tools.settings, planner=self.name, memory_budget_bytes=budget_bytes)
        own = step
        if plan.execution.units is not problem.units:
            own = replace(step, units=plan.execution.units)
            problem, solution = reformulated(
                problem,
                solution,
                own.units,
                lambda offered: self.formulate(own, budget_bytes, settings, offered=offered),
            )
        solved = Solved(problem, solution, plan.execution.kept_copies)
        return replace(
            plan,
            traced=own,
            origin=Origin(own, settings, self, problem.fixed.offered),
            breakdown=build_breakdown(solved),
            progress=log.entries,
        )

    def _searched(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None
    ) -> tuple[PlanningProblem, Plan]:
        """A plan, and the problem that it solves: the given one, or one of `other_start`."""
        own = start or Start(self.formulate(step, budget_bytes, tools.settings))
        try:
            return own.problem, self.search(step, budget_bytes, tools, own)
        except (InfeasibleBudgetError, NoPlanFoundError) as refusal:
            half = tools.part(shares.SECOND_SEARCH_SHARE)
            other, error = None, refusal
            if start is None and not isinstance(refusal, BudgetNotMetError):
                least = least_peak(own.problem, budget_bytes, tools)
                error = with_least_peak(refusal, budget_bytes, least.peak_bytes)
                other = least.start
            limit_bytes = limit_below(error, budget_bytes)
            if start is None and other is None:
                other = self.other_start(error, step, limit_bytes or budget_bytes, tools)
            if other is not None:
                return other.problem, self.search(step, budget_bytes, half, other, limit_bytes)
            found = self._above_budget(error, step, budget_bytes, half, own)
            if isinstance(found, Plan):
                return own.problem, found
            if isinstance(found, NoPlanFoundError) or not own.problem.fixed.pins.labels:
                raise found from None

            def planned(trial: Tools) -> Plan:
                start = Start(self.formulate(step, budget_bytes, trial.settings))
                return self.search(step, budget_bytes, trial, start)

            raise blamed(found, own.problem.fixed.pins, tools, planned) from error

    def _above_budget(
        self, error: Refusal, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start
    ) -> Plan | Refusal:
        """A plan that is predicted to be above the budget and compiles to less, or why there is
        none."""
        for limit_bytes in raised_limits(error, budget_bytes) if tools.compile else ():
            try:
                return self.search(step, budget_bytes, tools, start, limit_bytes)
            except BudgetNotMetError as not_met:
                return not_met
            except (InfeasibleBudgetError, NoPlanFoundError):
                continue
        return error

    def search(
        self,
        step: StepToPlan,
        budget_bytes: int,
        tools: Tools,
        start: Start,
        limit_bytes: int | None = None,
    ) -> Plan:
        """The plan that the closed loop finds for one problem; it begins with `limit_bytes`, by
        default the budget."""
        proposer = ProblemSearch(self, step, budget_bytes, tools, start, limit_bytes)
        return ClosedLoop(self, proposer, budget_bytes, tools).run()

    def other_start(
        self, error: Refusal, step: StepToPlan, budget_bytes: int, tools: Tools
    ) -> Start | None:
        """What to begin another search with after the first one found no plan."""
        return None
