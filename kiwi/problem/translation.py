"""Solutions carried over to a problem that differs: other copies, pinned operators.

The nodes of arguments and units are the same in all problems of a traced call on a mesh, and so
are the strategies of a unit where nothing is fixed; those of resharded copies depend on the
budget, and follow from the choices of producer and reader.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kiwi.memory.residency import Residency
from kiwi.problem.alternatives import local_costs
from kiwi.problem.build import PlanningProblem


@dataclass(frozen=True)
class Choices:
    """What a plan decides, in terms that all planners of a step on a mesh share.

    `sources`: the option of each argument and constant. `units`: for each unit the index of its
    strategy, and its residency.
    """

    sources: tuple[int, ...]
    units: tuple[tuple[int, Residency], ...]

    @staticmethod
    def of(planning: PlanningProblem, solution: Sequence[int]) -> "Choices":
        """The choices that a solution means."""
        first = len(planning.sources)
        units = []
        for node, option in zip(planning.unit_nodes, solution[first:], strict=False):
            strategy, residency = divmod(option, len(node.residency.options))
            units.append((strategy, node.residency.options[residency]))
        return Choices(tuple(solution[:first]), tuple(units))

    def solution_of(self, planning: PlanningProblem) -> tuple[int, ...] | None:
        """The same choices as a solution of another planner's problem, to start from.

        A unit of one residency has that. None where one of several is wanted that the problem does
        not offer (`kiwi.problem.build.Fixed.offered`).
        """
        found = list(self.sources)
        for node, (strategy, residency) in zip(planning.unit_nodes, self.units, strict=True):
            options = node.residency.options
            if len(options) > 1 and residency not in options:
                return None
            own = options.index(residency) if residency in options else 0
            found.append(strategy * len(options) + own)
        return copies_that_follow(planning, found)


def offered(choices: Sequence[Choices]) -> tuple[tuple[Residency, ...], ...]:
    """For each unit the residencies of several plans, to be offered to another planner."""
    by_unit = zip(*(c.units for c in choices), strict=True)
    return tuple(tuple(dict.fromkeys(r for _, r in mine)) for mine in by_unit)


def copies_that_follow(planning: PlanningProblem, choices: Sequence[int]) -> tuple[int, ...]:
    """Completes choices of sources and units by those of the copies."""
    layouts = {s.value: s.shardings[o] for s, o in zip(planning.sources, choices, strict=False)}
    first = len(planning.sources)
    chosen = [
        node.choice(option)
        for node, option in zip(planning.unit_nodes, choices[first:], strict=True)
    ]
    for unit, (strategy, _) in zip(planning.units.units, chosen, strict=True):
        layouts.update(zip(unit.outputs, strategy.results, strict=True))
    found = []
    for copy in planning.copies:
        strategy, residency = chosen[copy.unit]
        wanted = strategy.reads[copy.read]
        is_copy = layouts[copy.value] != wanted
        found.append(
            next(
                k
                for k, option in enumerate(copy.options)
                if option.target == wanted
                and option.is_copy == is_copy
                and (not is_copy or option.again_at == residency.recompute_at)
            )
        )
    return (*choices, *found)


def follow(
    planning: PlanningProblem, solution: Sequence[int], pins: Mapping[int, Sequence[int]]
) -> tuple[int, ...]:
    """The solution with each pinned unit at the pinned option that is cheapest among them."""
    first = len(planning.sources)
    costs = local_costs(planning, solution)
    choices = list(solution[: first + len(planning.unit_nodes)])
    for unit, allowed in pins.items():
        choices[first + unit] = min(allowed, key=lambda o, u=unit: (costs[first + u][o], o))
    return copies_that_follow(planning, choices)
