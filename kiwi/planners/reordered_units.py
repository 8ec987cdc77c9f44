"""The units of a plan in another order, in which XLA's heap wastes less.

XLA's heap wastes memory, differently for each order of the same units (`kiwi.memory.order_search`).
Another order of a plan's units takes no time of the step, a lower limit does.

1. What the plan holds, as estimated, becomes buffers: each is there from the unit that yields it to
   the last of those that read it. Units move with what is computed again before them. An opened
   loop moves as a whole, and a unit with the one before it that XLA may fuse into it or that it may
   write over (`kiwi.memory.live_ranges`).
2. Units come behind what they read, readers of a first computation before the second one, readers
   of a donated argument before its update, effects and readers of kept copies in their order.
3. The best order becomes the order of the units themselves. The plan is then estimated as any; its
   heap is the one that was sought.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from kiwi.hlo.fusion import is_map
from kiwi.hlo.units import UnitGraph
from kiwi.memory.live_ranges import Lifetimes
from kiwi.memory.order_search import Buffer, Steps, better_order, needed_bytes
from kiwi.memory.residency import Residency, UnitResidency
from kiwi.plans.estimate import Held, held_of
from kiwi.problem.build import KeptCopies, PlanningProblem, UnitNode
from kiwi.problem.solved import Solved
from kiwi.problem.translation import copies_that_follow
from kiwi.solver.problem import Interval


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


def steps_of_units(planning: PlanningProblem, kept: KeptCopies) -> Steps:
    """The units of a problem in which nothing is left to choose, as steps."""
    return _Units(planning, kept).steps()


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


def _again(planning: PlanningProblem) -> dict[int, int]:
    """The unit before which each unit is computed again, if it is."""
    found = {node.unit: node.residency.options[0].recompute_at for node in planning.unit_nodes}
    return {unit: at for unit, at in found.items() if at is not None}


def _readings(units: UnitGraph, again: Mapping[int, int]) -> list[list[int]]:
    """For each unit the times at which its result is used, also by what is computed again."""
    found = []
    for unit in units.units:
        uses = units.uses[unit.index]
        readers = (use.reader for use in uses if use.reader is not None)
        times = {use.time for use in uses} | {again[r] for r in readers if r in again}
        found.append(sorted(times - {unit.index}))
    return found


class _Units:
    """Which units are tied to each other, and what they hold."""

    def __init__(self, planning: PlanningProblem, kept: KeptCopies) -> None:
        self._planning, self._kept = planning, kept
        self._graph = planning.units
        self._count = len(planning.units.units)
        self._again = _again(planning)
        self._readings = _readings(planning.units, self._again)
        self._overwritten = Lifetimes.of(planning.units, planning.fixed.target).overwritten

    def steps(self) -> Steps:
        """All of them."""
        constant, buffers = 0, []
        takes_over = {self._graph.producer[r] for r in self._graph.aliased_results}
        for owner in held_of(self._planning):
            for interval in owner.intervals:
                is_whole = interval.start == 0 and interval.end == self._count
                if owner.kind == "argument" or is_whole:
                    constant += interval.bytes
                elif owner.kind == "copy":
                    buffers.append(self._copy(owner.index, interval))
                elif owner.index not in takes_over or interval.end < self._count:
                    buffers += self._results(owner, interval)
        precedes = frozenset((a, b) for a, b in self._precedes() if a != b)
        return Steps(
            tuple(self._runs()),
            precedes,
            tuple(buffers),
            constant_bytes=constant,
        )

    def _runs(self) -> Iterator[int]:
        length = 0
        for unit in range(self._count):
            if unit and not self._is_tied(unit):
                yield length
                length = 0
            length += 1
        if length:
            yield length

    def _is_tied(self, unit: int) -> bool:
        """Whether a unit stays behind the one before it."""
        around = self._graph.graph.program.loops_around
        loops = [around(self._graph.units[u].loop)[:1] for u in (unit - 1, unit)]
        if loops[0] and loops[0] == loops[1]:
            return True
        if (unit - 1, unit) in self._overwritten:
            return True
        former = self._graph.units[unit - 1]
        is_read = not set(former.outputs).isdisjoint(self._graph.units[unit].reads)
        return is_read and is_map(self._graph.graph, former.root)

    def _precedes(self) -> Iterator[tuple[int, int]]:
        for unit, times in enumerate(self._readings):
            again = self._again.get(unit, self._count)
            yield from ((unit, time) for time in times if time < again)
            if again < self._count:
                yield unit, again
                yield from ((time, again) for time in times if time < again)
                yield from ((again, time) for time in times if time > again)
        producer = self._graph.producer
        for unit in self._graph.units:
            yield from ((producer[v], unit.index) for v in unit.reads if v in producer)
        yield from self._before_updates()
        yield from pairwise(self._with_effects())
        values = {self._graph.units[u].rule.reads[read][0] for u, read in self._kept}
        for value in sorted(values):
            yield from pairwise(self._graph.readers[value])

    def _before_updates(self) -> Iterator[tuple[int, int]]:
        for result, argument in self._graph.aliased_results.items():
            update = self._graph.producer[result]
            for reader in self._graph.readers.get(argument, ()):
                yield from ((t, update) for t in (reader, self._again.get(reader, reader)))

    def _with_effects(self) -> list[int]:
        equations = self._graph.graph.program.equations
        return [u.index for u in self._graph.units if equations[u.root].has_effects]

    def _copy(self, maker: int, interval: Interval) -> Buffer:
        """A copy while its maker runs, or while it is kept from one reader to the next."""
        last = interval.end - 1
        if interval.start in (maker, self._again.get(maker)) or interval.start == 0:
            return Buffer(interval.bytes, interval.start, (last,))
        return Buffer(interval.bytes, interval.start - 1, (last,), is_behind=True)

    def _results(self, owner: Held, interval: Interval) -> list[Buffer]:
        """A result, workspace, or what is held from the start: as many buffers of a result's size
        as that is (`kiwi.xla.rules.held_from_start`)."""
        unit, end = owner.index, interval.end
        if interval.start > 0 or unit == 0:
            return [self._result(owner, interval)]
        if end == unit:  # The result is written there.
            return [Buffer(interval.bytes, -1, (unit,), unit)]
        size = self._result_bytes(unit)
        count = interval.bytes // size if size and interval.bytes % size == 0 else 0
        count = max(1, count)
        return [Buffer(interval.bytes // count, -1, (max(unit, end - 1),))] * count

    def _result_bytes(self, unit: int) -> int:
        """Of one device."""
        (strategy,), mesh = self._planning.unit_nodes[unit].strategies, self._planning.mesh
        values = self._graph.graph.program.values
        outputs = zip(self._graph.units[unit].outputs, strategy.results, strict=True)
        return sum(values[o].size_bytes // lies.shard_count(mesh.shape) for o, lies in outputs)

    def _result(self, owner: Held, interval: Interval) -> Buffer:
        unit, start, end = owner.index, interval.start, interval.end
        over = end if (unit, end) in self._overwritten else -1
        readings = self._readings[unit]
        readers = {self._until(unit, t) for t in readings if start < t < end or t == over}
        if over < 0 and end - 1 > start:
            readers.add(end - 1)
        return Buffer(interval.bytes, start, tuple(sorted(readers)), over)

    def _until(self, unit: int, time: int) -> int:
        """What reads from outside of a loop holds it until the last iteration ends."""
        around = self._graph.graph.program.loops_around
        chain = around(self._graph.units[time].loop)
        depth = len(around(self._graph.units[unit].loop))
        return time if len(chain) <= depth else self._graph.spans[chain[depth]][1] - 1


def _reordered_residencies(
    before: PlanningProblem, graph: UnitGraph, place: Mapping[int, int]
) -> list[UnitResidency]:
    """The only residency of each unit of `graph`; `place` of the units of `before`."""
    again = {place[unit]: place[at] for unit, at in _again(before).items()}
    readings = _readings(graph, again)
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
        end = max((latest, *readings[unit.index]))
        found.append(UnitResidency(forward, latest, (Residency(at, end),)))
    return found
