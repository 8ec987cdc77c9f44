"""The baselines' plans to begin with, where "joint" alone finds none.

The residencies that "joint" chooses from are a selection (`kiwi.memory.residency.MAX_TIMES`),
and there are many more of its options than of a baseline's. Close to the least memory that is
possible its search may end without a plan where one of theirs has one. Then

1. the baselines plan the step for the same budget;
2. what the fastest of them recomputes, and when, is offered to "joint"
   (`kiwi.problem.build.Fixed.offered`), so that its plan is a solution of that problem
   (`kiwi.problem.translation.Choices`); short searches end worse if offered what all of them do;
3. the search begins with it, and never ends behind it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from kiwi.calls.traced import Traced
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError, KiwiError
from kiwi.memory.residency import Residency
from kiwi.options import Settings
from kiwi.planners.closed_loop import ClosedLoop
from kiwi.planners.registry import PLANNERS, planner_named
from kiwi.plans.estimate import estimate_solution
from kiwi.plans.plan import Plan
from kiwi.problem.build import PlanningProblem
from kiwi.problem.translation import Choices, offered
from kiwi.solver.evaluate import evaluate

BASELINES = ("alpa", *(name for name, planner in PLANNERS.items() if planner.rule))
"""Whose plans "joint" may begin with."""

HOPELESS = 1.25
"""How far above the budget, relatively, the smallest peak found may be for baselines to be asked:
what they recompute is another selection, not another step."""


class Formulate(Protocol):
    """`kiwi.planners.planning.formulate`, of one call."""

    def __call__(
        self, settings: Settings, *, offered: tuple[tuple[Residency, ...], ...] = ()
    ) -> PlanningProblem:
        """The problem of the call under settings."""
        ...


def may_help(error: KiwiError, settings: Settings) -> bool:
    """Whether baselines are worth asking after "joint" found no plan."""
    if isinstance(error, BudgetNotMetError) or not planner_named(settings.planner).recomputes:
        return False
    least = error.least_peak_bytes if isinstance(error, InfeasibleBudgetError) else None
    return least is None or least <= HOPELESS * settings.memory_budget_bytes


def begun_by_baselines(
    traced: Traced, settings: Settings, formulate: Formulate
) -> tuple[PlanningProblem, Plan] | None:
    """The plan that a search finds from the baselines' plans, and the problem that it solves.

    None if no baseline has a plan within the budget. They share half of the time limit, the
    search takes another half.
    """
    begun = begin_with(_baseline_choices(traced, settings, formulate), settings, formulate)
    if begun is None:
        return None
    planning, start = begun
    half = replace(settings, time_limit_seconds=settings.time_limit_seconds / 2)
    return planning, ClosedLoop(traced, planning, half).run(start)


def begin_with(
    choices: Sequence[Choices], settings: Settings, formulate: Formulate
) -> tuple[PlanningProblem, tuple[int, ...]] | None:
    """The problem in which the first of some plans that fits is a solution, and that solution.

    **Arguments:**

    - `choices`: of plans, fastest first.
    """
    for each in choices:
        planning = formulate(settings, offered=offered([each]))
        start = fastest_start(planning, [each], settings.memory_budget_bytes)
        if start is not None:
            return planning, start
    return None


def fastest_start(
    planning: PlanningProblem, choices: Sequence[Choices], budget_bytes: int
) -> tuple[int, ...] | None:
    """Of several plans, as solutions of a problem, the fastest that fits; None if none does."""
    problem = replace(planning.problem, limit_bytes=budget_bytes)
    starts = [start for each in choices if (start := each.solution_of(planning)) is not None]
    priced = [(evaluate(problem, start), start) for start in starts]
    feasible = [(price.cost, start) for price, start in priced if price.feasible]
    for _, start in sorted(feasible):
        if estimate_solution(planning, start).peak_bytes <= budget_bytes:
            return start
    return None


def _baseline_choices(traced: Traced, settings: Settings, formulate: Formulate) -> list[Choices]:
    """Of the baselines that have a plan, fastest first."""
    seconds = settings.time_limit_seconds / (2 * len(BASELINES))
    found = []
    for name in BASELINES:
        if traced.units.graph.program.loops and not PLANNERS[name].opens_loops:
            continue
        own = replace(settings, planner=name, time_limit_seconds=seconds)
        try:
            planning = formulate(own)
            plan = ClosedLoop(traced, planning, replace(own, verify=None)).run(None)
        except KiwiError:  # it has no plan, or cannot take the step: another one may
            continue
        if plan.fits and plan.solve_result.solution is not None:
            choices = Choices.of(planning, plan.solve_result.solution)
            found.append((plan.estimate.step_seconds, len(found), choices))
    return [choices for _, _, choices in sorted(found)]
