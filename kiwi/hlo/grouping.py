"""Groups equations into units, and puts the units in the order in which they run."""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter

from kiwi.hlo.chains import NO_FUSION, Fusion
from kiwi.hlo.delayed_units import delay_to_first_reader
from kiwi.hlo.equation_kinds import is_opaque
from kiwi.hlo.fusion import chain, materialised
from kiwi.hlo.garbage_collection import without_collection
from kiwi.hlo.graph import HloGraph, Phase
from kiwi.hlo.host_memory import FETCH
from kiwi.hlo.in_place import overwritable
from kiwi.hlo.rule import RuleComposer
from kiwi.hlo.units import Unit, UnitGraph


@without_collection()
def build_units(
    graph: HloGraph,
    donated_arguments: frozenset[int] = frozenset(),
    fusion: Fusion = NO_FUSION,
) -> UnitGraph:
    """Groups equations into units, and returns the units in execution order.

    - `donated_arguments`: as in `UnitGraph`.
    - `fusion`: what the compiler computes inside other kernels.

    Units are in program order, with three exceptions:

    - Optimizer updates run as soon as they can. Tracing puts all updates at the end. XLA's
      schedulers place an update where it frees the gradient. A unit that may write over the result
      just computed still precedes all updates, since only the next unit may write over that result
      (`kiwi.memory.live_ranges`, rule 4).
    - Fetches from host memory stand just before their first reader.
    - So do units that `kiwi.hlo.delayed_units` can move there.

    The units of each loop are contiguous.
    """
    if graph.matmul_simplification != fusion.matmul_simplification:
        graph = replace(graph, matmul_simplification=fusion.matmul_simplification)
    roots = [index for index, is_root in enumerate(materialised(graph, fusion)) if is_root]
    drafts = regroup(graph, roots, donated_arguments)
    ordered = _numbered(drafts.units[draft] for draft in _Ordering(drafts).of(None))
    return replace(drafts, units=_numbered(delay_to_first_reader(replace(drafts, units=ordered))))


def regroup(
    graph: HloGraph, roots: Sequence[int], donated_arguments: frozenset[int] = frozenset()
) -> UnitGraph:
    """Returns the units whose materialised equations are `roots`, in the order of `roots`.

    A saved plan may have been made when other rules grouped equations. Its units are regrouped by
    their roots.
    """
    is_root = [False] * len(graph.program.equations)
    for root in roots:
        is_root[root] = True
    units = _numbered(_unit(graph, is_root, root) for root in roots)
    return UnitGraph(graph, units, donated_arguments)


def _numbered(units: Iterable[Unit]) -> tuple[Unit, ...]:
    return tuple(replace(unit, index=index) for index, unit in enumerate(units))


def _unit(graph: HloGraph, is_materialised: Sequence[bool], root: int) -> Unit:
    """Returns the unit of a materialised equation. Its index is a preliminary one."""
    equations, reads = chain(graph, is_materialised, root)
    root_equation = graph.program.equations[root]
    composer = RuleComposer()
    for index in equations:
        equation, rule = graph.program.equations[index], graph.equations[index].rule
        composer.add(rule.as_rule(), [key for key, _ in rule.reads], equation.outputs)
    phase = graph.phase_of(root)
    may_recompute = (
        phase is Phase.FORWARD
        and bool(root_equation.outputs)
        and not root_equation.is_border
        and all(graph.program.equations[i].may_repeat for i in equations)
        and not any(is_opaque(graph, i) for i in equations)
    )
    return Unit(
        root,
        tuple(equations),
        tuple(reads),
        root_equation.outputs,
        composer.compose(root_equation.outputs),
        phase,
        may_recompute,
        root_equation.loop,
    )


class _Ordering:
    """Orders the units of the step, and those of each loop's body, by priority.

    An item of an order is a unit, or an inner loop with all its units. A *draft* is a unit before
    the order is known, by its index in program order.
    """

    def __init__(self, drafts: UnitGraph) -> None:
        self._graph = drafts.graph
        self._drafts = drafts.units
        self._waits = _dependencies(drafts)
        self._unread = Counter(value for draft in drafts.units for value in draft.reads)
        self._unfetched = {
            (draft.loop, output): draft.index
            for draft in drafts.units
            if drafts.graph.program.equations[draft.root].name == FETCH
            for output in draft.outputs
            if draft.loop
            in (None, *(drafts.units[reader].loop for reader in drafts.readers[output]))
        }
        self._fetches = frozenset(self._unfetched.values())

    def of(self, loop: int | None) -> list[int]:
        """Returns the drafts of a loop, or of the step for None, in execution order."""
        members = self._members(loop)
        item_of = {draft: item for item, drafts in members.items() for draft in drafts}
        sorter = TopologicalSorter(
            {
                item: {
                    item_of[leader]
                    for member in drafts
                    for leader in self._waits[member]
                    if leader in item_of
                }
                - {item}
                for item, drafts in members.items()
            }
        )
        sorter.prepare()
        ordered: list[int] = []
        ready: list[tuple[bool, int]] = []
        done: set[int] = set()
        last: int | None = None
        while sorter.is_active():
            following: int | None = None
            for item in sorter.get_ready():
                heapq.heappush(ready, (self._is_late(members[item]), item))
                if last is not None and self._continues(members[last], members[item]):
                    following = item
            last = heapq.heappop(ready)[1] if following is None else following
            if last not in done:
                done.add(last)
                self._run(members[last], loop, ordered)
                sorter.done(last)
        return ordered

    def _members(self, loop: int | None) -> dict[int, list[int]]:
        """Returns the items of a loop's body: first draft of the item → all its drafts. Fetches
        are left out, since `_run` puts them before their readers."""
        around = self._graph.program.loops_around
        depth = len(around(loop))
        items: dict[int | None, int] = {}
        units_of_item: dict[int, list[int]] = {}
        for number, draft in enumerate(self._drafts):
            chain = around(draft.loop)
            if chain[:depth] != around(loop) or number in self._fetches:
                continue
            item = number if len(chain) == depth else items.setdefault(chain[depth], number)
            units_of_item.setdefault(item, []).append(number)
        return units_of_item

    def _run(self, inside: list[int], loop: int | None, ordered: list[int]) -> None:
        """Appends the drafts of an item to `ordered`: the fetches that it reads, then the unit, or
        the units of the inner loop in execution order."""
        keys = ((loop, value) for number in inside for value in self._drafts[number].reads)
        ordered += [self._unfetched.pop(key) for key in keys if key in self._unfetched]
        around = self._graph.program.loops_around
        inner = self._drafts[inside[0]].loop
        if inner != loop:
            ordered += self.of(around(inner)[len(around(loop))])
            return
        ordered += inside
        self._unread.subtract(self._drafts[inside[0]].reads)

    def _is_late(self, inside: list[int]) -> bool:
        """Whether an item has units of another phase than the update. Updates take precedence."""
        return {self._drafts[draft].phase for draft in inside} != {Phase.UPDATE}

    def _continues(self, inside: list[int], following: list[int]) -> bool:
        """Whether `following` is a unit that may write over the result of the unit `inside`, which
        no other unit still reads."""
        if len(inside) > 1 or len(following) > 1:
            return False
        unit, reader = self._drafts[inside[0]], self._drafts[following[0]]
        return (
            len(unit.outputs) == 1
            and unit.outputs[0] not in self._graph.program.result_values
            and self._unread[unit.outputs[0]] == 1
            and unit.outputs[0] in overwritable(self._graph, reader)
        )


def _dependencies(drafts: UnitGraph) -> list[set[int]]:
    """Returns, for each draft, the earlier drafts that it must follow.

    A draft follows the producers of its operands. If it overwrites a donated argument, it follows
    the earlier readers of that argument. If it has side effects, it follows the last draft before
    it with side effects.
    """
    producer, aliased = drafts.producer, drafts.aliased_results
    waits = []
    effects: list[int] = []
    for draft in drafts.units:
        leaders = {producer[value] for value in draft.reads if value in producer}
        overwritten = [aliased[output] for output in draft.outputs if output in aliased]
        readers = (
            reader for argument in overwritten for reader in drafts.readers.get(argument, ())
        )
        leaders.update(reader for reader in readers if reader < draft.index)
        if drafts.graph.program.equations[draft.root].has_effects:
            leaders.update(effects[-1:])
            effects.append(draft.index)
        waits.append(leaders)
    return waits
