"""Planners whose plans are solutions of the `Problem` of the step.

The planner formulates the problem; a campaign searches it (`kiwi.campaign`), and begins again from
other starts where it finds no plan.
"""

from dataclasses import dataclass, replace

from kiwi.campaign.campaign import Campaign, run, searched
from kiwi.campaign.closed_loop import Refusal
from kiwi.campaign.reordered_units import reformulated
from kiwi.campaign.searches import SEARCHES
from kiwi.campaign.tools import ProgressLog, Tools
from kiwi.options import Settings
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
        tools = tools.with_settings(planner=self.name, memory_budget_bytes=budget_bytes)
        campaign = self._campaign(step, tools.with_settings(on_progress=log), start)
        problem, plan = run(campaign, SEARCHES)
        solution = plan.solve_result.solution
        assert solution is not None
        if plan.execution.units is not problem.units:
            step = replace(step, units=plan.execution.units)
            problem, solution = reformulated(
                problem,
                solution,
                step.units,
                lambda offered: self.formulate(step, budget_bytes, tools.settings, offered=offered),
            )
        solved = Solved(problem, solution, plan.execution.kept_copies)
        return replace(
            plan,
            traced=step,
            origin=Origin(step, tools.settings, self, problem.fixed.offered),
            breakdown=build_breakdown(solved),
            progress=log.entries,
        )

    def _campaign(self, step: StepToPlan, tools: Tools, start: Start | None) -> Campaign:
        """What is known before the first search."""

        def formulated(settings: Settings) -> PlanningProblem:
            return self.formulate(step, settings.memory_budget_bytes, settings)

        def other_start(error: Refusal, tools: Tools) -> Start | None:
            return self.other_start(error, step, tools)

        return Campaign(
            planner=self,
            step=step,
            tools=tools,
            start=start or Start(formulated(tools.settings)),
            is_given=start is not None,
            formulate=formulated,
            other_start=other_start,
        )

    def search(self, step: StepToPlan, tools: Tools, start: Start) -> Plan:
        """The plan that the closed loop finds for one problem, without other starts."""
        return searched(self, step, tools, start)

    def other_start(self, error: Refusal, step: StepToPlan, tools: Tools) -> Start | None:
        """What to begin another search with after the first one found no plan; the budget of
        `tools` is lower where programs were over it."""
        return None
