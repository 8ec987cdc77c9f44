"""Solutions carried over to a problem that differs: other copies, pinned operators.

The nodes of arguments and units are the same in all problems of a traced call on a mesh; those
of resharded copies depend on the budget, and follow from the choices of producer and reader.
"""

from collections.abc import Mapping, Sequence

from kiwi.plan.alternatives import local_costs
from kiwi.strategy.build import PlanningProblem


def translate(
    solution: Sequence[int], source: PlanningProblem, target: PlanningProblem
) -> tuple[int, ...]:
    """The same choices for another problem of the same call on the same mesh."""
    count = len(source.sources) + len(source.unit_nodes)
    return copies_that_follow(target, solution[:count])


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
