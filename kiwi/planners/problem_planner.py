"""Planners whose plans are solutions of the `Problem` of a step.

The planner formulates the problem. A campaign searches it (`kiwi.campaign`), and begins again from
other starts if it finds no plan. Compiled programs then correct prices, and the step is planned
again with the corrections.
"""

from dataclasses import dataclass, replace

from kiwi.campaign import shares
from kiwi.campaign.attempts import WITH_CORRECTIONS
from kiwi.campaign.campaign import Campaign, run, searched
from kiwi.campaign.learnt_overlap import LessOverlap
from kiwi.campaign.learnt_seconds import learnt
from kiwi.campaign.overlap_search import compiled_seconds
from kiwi.campaign.reordered_units import reformulated
from kiwi.campaign.searches import SEARCHES
from kiwi.campaign.tools import ProgramsLeft, ProgressLog, Tools
from kiwi.corrections import Corrections
from kiwi.errors import InfeasibleBudgetError, NoPlanFoundError
from kiwi.options import Settings
from kiwi.planners.planner import Planner
from kiwi.plans.breakdown import build_breakdown
from kiwi.plans.estimate import estimate_solution, with_seconds_of
from kiwi.plans.plan import Plan
from kiwi.plans.record import Origin
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved, Start
from kiwi.problem.step import StepToPlan
from kiwi.solver import SolveStatus


@dataclass(frozen=True)
class ProblemPlanner(Planner):
    """A planner whose plans are solutions of the problem that `formulate` returns."""

    def plan(
        self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None = None
    ) -> Plan:
        """Returns the plan of a step, as `Planner.plan` does.

        Without a `start`, the step is planned again with prices corrected by compiled programs. The
        plan with the fastest program is the answer. Its prices have all corrections.
        """
        if start is None:
            latest, tools = self._with_reached_overlap(step, budget_bytes, tools)
        else:
            latest = self._once(step, budget_bytes, tools, start)
        best, corrections, other_rounds = latest, tools.settings.corrections, ()
        for _ in range(shares.MOST_CORRECTIONS if start is None else 0):
            new_corrections = learnt(latest)
            if not new_corrections:
                break
            corrections = corrections.and_also(new_corrections)
            corrected_tools = replace(
                tools.part(shares.CORRECTED_SHARE).with_settings(corrections=corrections),
                programs=ProgramsLeft(shares.CORRECTED_PROGRAMS),
            )
            with tools.history.within(WITH_CORRECTIONS):
                try:
                    latest = self._once(latest.traced, budget_bytes, corrected_tools, None)
                except (InfeasibleBudgetError, NoPlanFoundError):
                    break
            if compiled_seconds(latest) < compiled_seconds(best):
                best, slower = latest, best
            else:
                slower = latest
            other_rounds += slower.rounds
        best = replace(best, rounds=(*other_rounds, *best.rounds))
        bound = latest.solve_result.bound
        return self._priced(best, corrections.and_also(learnt(latest)), bound)

    def _with_reached_overlap(
        self, step: StepToPlan, budget_bytes: int, tools: Tools
    ) -> tuple[Plan, Tools]:
        """Returns a plan whose prices count on as much overlap as programs reach, and tools with
        these prices. The plan is never slower than a program that was compiled on the way."""
        try:
            learning = replace(tools, learns_overlap=True)
            return self._once(step, budget_bytes, learning, None), tools
        except LessOverlap as late:
            corrections = replace(tools.settings.corrections, overlap=late.overlap)
            corrected_tools, seconds = tools.with_settings(corrections=corrections), late.seconds
        with tools.history.within(WITH_CORRECTIONS):
            try:
                plan = self._once(step, budget_bytes, corrected_tools, None)
            except (InfeasibleBudgetError, NoPlanFoundError):
                plan = None
        if plan is not None and compiled_seconds(plan) <= seconds:
            return plan, corrected_tools
        return self._once(step, budget_bytes, tools, None), tools

    def _priced(self, plan: Plan, corrections: Corrections, bound: float) -> Plan:
        """Returns a plan with its seconds by the latest corrections.

        - `bound`: the bound of the last search, which had most of the corrections in its prices.
        """
        origin = plan.origin
        if corrections == plan.corrections or origin is None:
            return replace(plan, corrections=corrections)
        origin = replace(origin, settings=replace(origin.settings, corrections=corrections))
        solution = plan.breakdown.choices.solution_of(origin.planning)
        if solution is None:
            return replace(plan, corrections=corrections)
        solved = Solved(origin.planning, solution, plan.execution.kept_copies)
        priced, result = estimate_solution(solved), plan.solve_result
        is_waiting = not plan.estimate.hidden_seconds or plan.compiled is None
        estimate = with_seconds_of(plan.estimate, priced.without_overlap if is_waiting else priced)
        return replace(
            plan,
            origin=origin,
            breakdown=build_breakdown(solved),
            estimate=estimate,
            corrections=corrections,
            solve_result=replace(
                result,
                objective=estimate.step_seconds,
                bound=min(bound, estimate.step_seconds),
                status=SolveStatus.FEASIBLE,
            ),
        )

    def _once(self, step: StepToPlan, budget_bytes: int, tools: Tools, start: Start | None) -> Plan:
        """Returns the plan by the corrections in the tools' settings."""
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
            corrections=tools.settings.corrections,
        )

    def _campaign(self, step: StepToPlan, tools: Tools, start: Start | None) -> Campaign:
        """Returns the state of the campaign before its first search."""

        def formulated(settings: Settings) -> PlanningProblem:
            return self.formulate(step, settings.memory_budget_bytes, settings)

        return Campaign(
            planner=self,
            step=step,
            tools=tools,
            start=start or Start(formulated(tools.settings)),
            is_given=start is not None,
            formulate=formulated,
        )

    def search(self, step: StepToPlan, tools: Tools, start: Start) -> Plan:
        """Returns the plan that the closed loop finds from one start, without trying other starts.

        **Raises:** the errors of `kiwi.campaign.closed_loop.ClosedLoop.run`.
        """
        return searched(self, step, tools, start)
