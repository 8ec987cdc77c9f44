"""The option indices of a plan's choices, for a problem formulated anew."""

from kiwi.errors import PlanMismatchError
from kiwi.memory.residency import Residency
from kiwi.plans.breakdown import CostBreakdown
from kiwi.problem.build import PlanningProblem
from kiwi.problem.translation import Choices, UnitChoice


def recover_solution(planning: PlanningProblem, breakdown: CostBreakdown) -> tuple[int, ...]:
    """The solution of `planning` that a breakdown describes; raises `PlanMismatchError` if a choice
    is no longer among the options, as in a file of an older Kiwi."""
    units = (
        UnitChoice(entry.reads, entry.results, Residency(entry.recompute_at, entry.end))
        for entry in breakdown.operators
    )
    choices = Choices(tuple(entry.sharding for entry in breakdown.sources), tuple(units))
    found = choices.solution_of(planning)
    if found is None:
        raise PlanMismatchError(
            "The plan's choices are not all among today's options.",
            cause="The plan was made by another version of Kiwi.",
            suggestion="Plan again; the saved plan can still be applied.",
        )
    return found
