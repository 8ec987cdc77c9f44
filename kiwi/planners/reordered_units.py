"""The units of a plan in another order, in which XLA's heap wastes less.

XLA's heap wastes memory, differently for each order of the same units (`kiwi.memory.order_search`).
Another order of a plan's units takes no time of the step, a lower limit does.

1. The plan's units become steps that may change places (`kiwi.problem.moving_units`).
2. The best order becomes the order of the units themselves. The plan is then estimated as any; its
   heap is the one that was sought.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from kiwi.hlo.units import UnitGraph
from kiwi.memory.order_search import Steps, better_order, needed_bytes
from kiwi.memory.residency import Residency, UnitResidency, last_use, with_life
from kiwi.problem.build import KeptCopies, PlanningProblem, UnitNode
from kiwi.problem.moving_units import readings, recomputed_at, steps_of_units
from kiwi.problem.solved import Solved
from kiwi.problem.translation import Choices


@dataclass(frozen=True, eq=False)
class Ordered:
    """A solution of one option each, and its order.

    - `planning`: the problem in which nothing is left to choose, of units in this order.
    - `kept`: the copies that are kept.
    """

    planning: PlanningProblem
    kept: KeptCopies

    @classmethod
    def given(cls, solved: Solved) -> "Ordered":
        """A solution in the order of its problem."""
        return cls(solved.restricted, solved.kept)

    @functools.cached_property
    def _steps(self) -> Steps:
        return steps_of_units(self.planning, self.kept)

    @property
    def solved(self) -> Solved:
        """The only solution of `planning`."""
        return Solved(self.planning, (0,) * len(self.planning.problem.nodes), self.kept)

    @property
    def needed_bytes(self) -> int:
        """What XLA's heap needs in this order."""
        return needed_bytes(self._steps)

    def another(self, limit_bytes: int, aim_bytes: int, seed: int) -> "Ordered | None":
        """Another order that is alive within a limit, and needs less than this one or no more than
        `aim_bytes`; None if there is none.
        """
        anew = self.needed_bytes <= aim_bytes
        runs = better_order(self._steps, limit_bytes, aim_bytes, seed, anew=anew)
        if runs == tuple(range(len(self._steps.runs))):
            return None
        starts = [0, *accumulate(self._steps.runs)]
        return self.ordered([t for run in runs for t in range(starts[run], starts[run + 1])])

    def ordered(self, order: Sequence[int]) -> "Ordered":
        """With the units at hand in another order; `order[k]` is the unit that comes k-th."""
        place = {unit: k for k, unit in enumerate(order)}
        before = self.planning.units
        units = tuple(replace(before.units[u], index=k) for k, u in enumerate(order))
        graph = UnitGraph(before.graph, units, before.donated_arguments, before.aliased_results)
        residencies = _reordered_residencies(self.planning, graph, place)
        nodes = tuple(
            UnitNode(k, self.planning.unit_nodes[order[k]].strategies, residency)
            for k, residency in enumerate(residencies)
        )
        kept = frozenset((place[unit], read) for unit, read in self.kept)
        planning = replace(self.planning, units=graph, unit_nodes=nodes, copies=())
        none = (0,) * (len(planning.sources) + len(nodes))
        return Ordered(planning.restricted(none, kept), kept)


def reformulated(
    planning: PlanningProblem,
    solution: Sequence[int],
    units: UnitGraph,
    formulate: Callable[[tuple[tuple[Residency, ...], ...]], PlanningProblem],
) -> tuple[PlanningProblem, tuple[int, ...]]:
    """The problem of a plan whose units are in another order, and the plan's solution of it.

    **Arguments:**

    - `planning`, `solution`: in the order that was given; `units` in the plan's.
    - `formulate`: the problem in the plan's order, with residencies offered for each unit.
    """
    number = {unit.root: unit.index for unit in planning.units.units}
    order = [number[unit.root] for unit in units.units]
    chosen = Ordered.given(Solved(planning, solution)).ordered(order).solved
    found = formulate(tuple(node.residency.options for node in chosen.problem.unit_nodes))
    same = Choices.of(chosen.problem, chosen.solution).solution_of(found)
    # Behind other units another strategy may beat the plan's.
    return (chosen.problem, tuple(chosen.solution)) if same is None else (found, same)


def _reordered_residencies(
    before: PlanningProblem, graph: UnitGraph, place: Mapping[int, int]
) -> Iterator[UnitResidency]:
    """The only residency of each unit of `graph`; `place` of the units of `before`."""
    again = {place[unit]: place[at] for unit, at in recomputed_at(before).items()}
    read_at = readings(graph, again)
    for unit in graph.units:
        end = max((last_use(graph, unit), *read_at[unit.index]))
        yield with_life(graph, unit, [Residency(again.get(unit.index), end)])
