"""The option indices of a plan's choices, for a problem formulated anew."""

from kiwi.errors import PlanMismatchError
from kiwi.plans.breakdown import CostBreakdown, OperatorEntry
from kiwi.problem.build import PlanningProblem, UnitNode
from kiwi.problem.translation import copies_that_follow


def recover_solution(planning: PlanningProblem, breakdown: CostBreakdown) -> tuple[int, ...]:
    """The solution of `planning` that a breakdown describes.

    **Raises:** `PlanMismatchError` if a choice is no longer among the options, as in a file of
    an older Kiwi.
    """
    sources = [
        node.shardings.index(entry.sharding)
        for node, entry in zip(planning.sources, breakdown.sources, strict=True)
    ]
    units = [
        _option(node, entry)
        for node, entry in zip(planning.unit_nodes, breakdown.operators, strict=True)
    ]
    return copies_that_follow(planning, [*sources, *units])


def _option(node: UnitNode, entry: OperatorEntry) -> int:
    for option in range(len(node.strategies) * len(node.residency.options)):
        strategy, residency = node.choice(option)
        if (
            strategy.reads == entry.reads
            and strategy.results == entry.results
            and residency.recompute_at == entry.recompute_at
            and residency.end == entry.end
        ):
            return option
    raise PlanMismatchError(
        f"The choice for operator {entry.unit} is not among today's options.",
        cause="The plan was made by another version of Kiwi.",
        suggestion="Plan again; the saved plan can still be applied.",
    )
