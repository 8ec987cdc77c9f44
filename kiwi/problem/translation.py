"""Solutions translated to another problem of the same step: with other copies, or pinned operators.

The nodes of arguments and units are the same in all problems of a traced call on a mesh. Those of
resharded copies depend on the budget, and follow from the choices of producer and reader.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kiwi.memory.residency import Residency
from kiwi.mesh import TensorSharding
from kiwi.problem.alternatives import local_costs
from kiwi.problem.build import PlanningProblem, UnitNode


@dataclass(frozen=True)
class UnitChoice:
    """The layouts that a unit expects and yields, and its residency."""

    reads: tuple[TensorSharding, ...]
    results: tuple[TensorSharding, ...]
    residency: Residency

    def option_of(self, node: UnitNode) -> int | None:
        """The option with this choice at a node. A unit with one residency has that one."""
        layouts = [(s.reads, s.results) for s in node.strategies]
        residencies = node.residency.options
        (wanted,) = residencies if len(residencies) == 1 else (self.residency,)
        if (self.reads, self.results) not in layouts or wanted not in residencies:
            return None
        strategy = layouts.index((self.reads, self.results))
        return strategy * len(residencies) + residencies.index(wanted)


@dataclass(frozen=True)
class Choices:
    """A plan's decisions, in terms that all problems of a step on a mesh share. `sources`: the
    sharding of each argument and constant."""

    sources: tuple[TensorSharding, ...]
    units: tuple[UnitChoice, ...]

    @staticmethod
    def of(planning: PlanningProblem, solution: Sequence[int]) -> "Choices":
        """The choices that a solution means."""
        sources = tuple(planning.source_shardings(solution).values())
        pairs = planning.unit_choices(solution)
        return Choices(sources, tuple(UnitChoice(s.reads, s.results, r) for s, r in pairs))

    def solution_of(self, planning: PlanningProblem) -> tuple[int, ...] | None:
        """The same choices as a solution of another problem; None if it does not offer one of them
        (`kiwi.problem.build.Fixed.offered`)."""
        pairs = zip(planning.sources, self.sources, strict=True)
        known = [s.shardings.index(own) if own in s.shardings else None for s, own in pairs]
        nodes = zip(self.units, planning.unit_nodes, strict=True)
        known += [choice.option_of(node) for choice, node in nodes]
        options = [option for option in known if option is not None]
        return copies_that_follow(planning, options) if len(options) == len(known) else None


def offered(choices: Sequence[Choices]) -> tuple[tuple[Residency, ...], ...]:
    """For each unit the residencies of several plans, to be offered to another planner."""
    by_unit = zip(*(c.units for c in choices), strict=True)
    return tuple(tuple(dict.fromkeys(u.residency for u in mine)) for mine in by_unit)


def copies_that_follow(planning: PlanningProblem, choices: Sequence[int]) -> tuple[int, ...]:
    """Completes the options of sources and units by those of the copies."""
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
    """The solution with a unit at the cheapest of its allowed options."""
    place = len(planning.sources) + unit
    costs = local_costs(planning, solution)[place]
    choices = list(solution[: len(planning.sources) + len(planning.unit_nodes)])
    choices[place] = min(allowed, key=lambda option: (costs[option], option))
    return copies_that_follow(planning, choices)
