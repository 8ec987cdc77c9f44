"""The translation of solutions to another problem of the same step, for example with other copies
or with pinned operators.

The nodes of arguments and units are the same in all problems of a traced call on a mesh. The nodes
of resharded copies depend on the budget. Their options follow from the choices of producer and
reader.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kiwi.memory.residency import Residency
from kiwi.mesh import TensorSharding
from kiwi.problem.alternatives import local_costs
from kiwi.problem.build import PlanningProblem, UnitNode


@dataclass(frozen=True)
class UnitChoice:
    """The layouts in which a unit expects its operands and yields its results, and its
    residency."""

    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    residency: Residency

    def option_of(self, node: UnitNode) -> int | None:
        """The index of a node's option with this choice; None if the node does not offer it. At a
        node with a single residency, the residency of the choice is ignored."""
        layouts = [(candidate.reads, candidate.results) for candidate in node.strategies]
        residencies = node.residency.options
        (wanted,) = residencies if len(residencies) == 1 else (self.residency,)
        if (self.reads, self.results) not in layouts or wanted not in residencies:
            return None
        strategy = layouts.index((self.reads, self.results))
        return strategy * len(residencies) + residencies.index(wanted)


@dataclass(frozen=True)
class Choices:
    """A plan's decisions, in terms that all problems of a step on a mesh share.

    - `sources`: the sharding of each argument and constant.
    - `units`: the choice for each unit.
    """

    sources: tuple[TensorSharding, ...]
    units: tuple[UnitChoice, ...]

    @staticmethod
    def of(planning: PlanningProblem, solution: Sequence[int]) -> "Choices":
        """Returns the choices of a solution."""
        sources = tuple(planning.source_shardings(solution).values())
        pairs = planning.unit_choices(solution)
        return Choices(
            sources,
            tuple(
                UnitChoice(strategy.reads, strategy.results, residency)
                for strategy, residency in pairs
            ),
        )

    def solution_of(self, planning: PlanningProblem) -> tuple[int, ...] | None:
        """The solution of a problem that makes these choices; None if the problem does not offer
        one of them (`kiwi.problem.build.Fixed.offered`)."""
        pairs = zip(planning.sources, self.sources, strict=True)
        known = [
            source.shardings.index(sharding) if sharding in source.shardings else None
            for source, sharding in pairs
        ]
        nodes = zip(self.units, planning.unit_nodes, strict=True)
        known += [choice.option_of(node) for choice, node in nodes]
        options = [option for option in known if option is not None]
        return copies_that_follow(planning, options) if len(options) == len(known) else None


def copies_that_follow(planning: PlanningProblem, choices: Sequence[int]) -> tuple[int, ...]:
    """Returns a whole solution, given the options of sources and units: the options of copies
    follow from them."""
    layouts, chosen = planning.layouts(choices), planning.unit_choices(choices)
    copies = []
    for copy in planning.copies:
        strategy, residency = chosen[copy.unit]
        wanted = copy.wanted(strategy, layouts)
        copies.append(copy.option_between(layouts[copy.value], wanted, residency))
    return (*choices, *copies)


def follow(
    planning: PlanningProblem, solution: Sequence[int], unit: int, allowed: Sequence[int]
) -> tuple[int, ...]:
    """Returns the solution with a unit at the cheapest of its `allowed` options, if all other units
    keep their options."""
    place = len(planning.sources) + unit
    costs = local_costs(planning, solution)[place]
    choices = list(solution[: len(planning.sources) + len(planning.unit_nodes)])
    choices[place] = min(allowed, key=lambda option: (costs[option], option))
    return copies_that_follow(planning, choices)
