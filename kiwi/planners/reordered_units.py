"""The units of a plan in another order, in which XLA's heap wastes less.

XLA's heap wastes memory, differently for each order of the same units (`kiwi.memory.order_search`).
Another order of a plan's units takes no time of the step, a lower limit does.

1. The plan's units become steps that may change places (`kiwi.problem.moving_units`).
2. The best order becomes the order of the units themselves. The plan is then estimated as any; its
   heap is the one that was sought.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from kiwi.hlo.units import UnitGraph
from kiwi.memory.order_search import better_order, needed_bytes
from kiwi.memory.residency import Residency, UnitResidency
from kiwi.problem.build import KeptCopies, PlanningProblem, UnitNode
from kiwi.problem.moving_units import readings, recomputed_at, steps_of_units
from kiwi.problem.solved import Solved
from kiwi.problem.translation import copies_that_follow


@dataclass(frozen=True, eq=False)
class Ordered:
    """A solution of one option each, and its order.

    - `planning`: the problem in which nothing is left to choose, of units in this order.
    - `kept`: the copies that are kept.
    - `sequence`: the number of each unit in the order that was given first.
    """

    planning: PlanningProblem
    kept: KeptCopies
    sequence: tuple[int, ...]

    @classmethod
    def given(cls, solved: Solved) -> "Ordered":
        """A solution in the order of its problem."""
        return cls(solved.restricted, solved.kept, tuple(range(len(solved.problem.units.units))))

    @property
    def solved(self) -> Solved:
        """The only solution of `planning`."""
        return Solved(self.planning, (0,) * len(self.planning.problem.nodes), self.kept)

    @property
    def needed_bytes(self) -> int:
        """What XLA's heap needs in this order."""
        return needed_bytes(steps_of_units(self.planning, self.kept))

    def another(self, limit_bytes: int, aim_bytes: int, seed: int) -> "Ordered | None":
        """Another order that is alive within a limit, and needs less than this one or no more than
        `aim_bytes`; None if there is none.
        """
        steps = steps_of_units(self.planning, self.kept)
        anew = needed_bytes(steps) <= aim_bytes
        runs = better_order(steps, limit_bytes, aim_bytes, seed, anew=anew)
        if runs == tuple(range(len(steps.runs))):
            return None
        starts = [0, *accumulate(steps.runs)]
        return self.ordered([t for run in runs for t in range(starts[run], starts[run + 1])])

    def ordered(self, order: Sequence[int]) -> "Ordered":
        """With the units at hand in another order; `order[k]` is the unit that comes k-th."""
        place = {unit: k for k, unit in enumerate(order)}
        before = self.planning.units
        units = tuple(replace(before.units[u], index=k) for k, u in enumerate(order))
        graph = UnitGraph(before.graph, units, before.donated_arguments, before.aliased_results)
        residencies = _reordered_residencies(self.planning, graph, place)
        nodes = tuple(
            UnitNode(k, self.planning.unit_nodes[u].strategies, residencies[k])
            for k, u in enumerate(order)
        )
        kept = frozenset((place[unit], read) for unit, read in self.kept)
        planning = replace(self.planning, units=graph, unit_nodes=nodes, copies=())
        none = (0,) * (len(planning.sources) + len(nodes))
        sequence = tuple(self.sequence[u] for u in order)
        return Ordered(planning.restricted(none, kept), kept, sequence)


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
    chosen = Ordered.given(Solved(planning, solution)).ordered(order).planning
    found = formulate(tuple(node.residency.options for node in chosen.unit_nodes))
    sources = [
        node.shardings.index(own.shardings[0])
        for node, own in zip(found.sources, chosen.sources, strict=True)
    ]
    options = [_option(*pair) for pair in zip(found.unit_nodes, chosen.unit_nodes, strict=True)]
    known = [option for option in options if option is not None]
    if len(known) < len(options):  # Behind other units another strategy beats the plan's.
        return chosen, (0,) * len(chosen.problem.nodes)
    return found, copies_that_follow(found, [*sources, *known])


def _option(node: UnitNode, chosen: UnitNode) -> int | None:
    (own,), (residency,) = chosen.strategies, chosen.residency.options
    for number, strategy in enumerate(node.strategies):
        if (strategy.reads, strategy.results) == (own.reads, own.results):
            options = node.residency.options
            return number * len(options) + options.index(residency)
    return None


def _reordered_residencies(
    before: PlanningProblem, graph: UnitGraph, place: Mapping[int, int]
) -> list[UnitResidency]:
    """The only residency of each unit of `graph`; `place` of the units of `before`."""
    again = {place[unit]: place[at] for unit, at in recomputed_at(before).items()}
    read_at = readings(graph, again)
    results, last = graph.graph.program.result_values, len(graph.units) - 1
    found = []
    for unit in graph.units:
        if any(output in results for output in unit.outputs):
            found.append(UnitResidency(last, last, (Residency(None, last),)))
            continue
        uses = graph.uses[unit.index]
        forward = max((u.time for u in uses if not u.is_late), default=unit.index)
        latest = max((u.time for u in uses), default=unit.index)
        at = again.get(unit.index)
        end = max((latest, *read_at[unit.index]))
        found.append(UnitResidency(forward, latest, (Residency(at, end),)))
    return found
