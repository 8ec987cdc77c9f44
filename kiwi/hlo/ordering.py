"""The order in which units run, before any is recomputed."""

import heapq
from collections import Counter
from collections.abc import Mapping

from kiwi.hlo.delayed_units import delay_to_first_reader
from kiwi.hlo.graph import HloGraph, Phase
from kiwi.hlo.host_memory import FETCH
from kiwi.hlo.in_place import overwritable
from kiwi.hlo.unit import Unit


def execution_order(graph: HloGraph, drafts: list[Unit], aliased: dict[int, int]) -> list[Unit]:
    """Program order, except that updates run as soon as they can; each loop's units together.

    XLA's schedulers place an optimizer update where it frees the gradient; tracing puts all of them
    at the end. A unit that may write over the result just computed precedes all updates: only the
    next unit can (`kiwi.memory.live_ranges`, rule 4). Fetches from host memory stand just before
    their first reader, and so do units that `kiwi.hlo.delayed_units` can move there.
    """
    waits = _dependencies(graph, drafts, aliased)
    ordered = [drafts[d] for d in _Ordering(graph, drafts, waits).of(None)]
    return delay_to_first_reader(graph, ordered, aliased)


class _Ordering:
    """The order of the units of one loop body, or of the step; an inner loop counts as one unit."""

    def __init__(self, graph: HloGraph, drafts: list[Unit], waits: list[set[int]]) -> None:
        self._graph = graph
        self._drafts = drafts
        self._waits = waits
        self._unread = Counter(value for draft in drafts for value in draft.reads)
        self._unfetched = {
            output: number
            for number, draft in enumerate(drafts)
            if graph.program.equations[draft.root].name == FETCH
            for output in draft.outputs
        }
        self._fetches = frozenset(self._unfetched.values())

    def of(self, loop: int | None) -> list[int]:
        """Draft numbers in execution order."""
        members = self._members(loop)
        item_of = {draft: item for item, inside in members.items() for draft in inside}
        waiting = {
            item: {item_of[w] for d in inside for w in self._waits[d] if w in item_of} - {item}
            for item, inside in members.items()
        }
        followers: dict[int, list[int]] = {item: [] for item in members}
        for item, leaders in waiting.items():
            for leader in leaders:
                followers[leader].append(item)
        return self._sorted(members, waiting, followers, loop)

    def _members(self, loop: int | None) -> dict[int, list[int]]:
        """First unit → units: one item for each unit of the body, and for each inner loop."""
        around = self._graph.program.loops_around
        depth = len(around(loop))
        items: dict[int | None, int] = {}
        found: dict[int, list[int]] = {}
        for number, draft in enumerate(self._drafts):
            chain = around(draft.loop)
            if chain[:depth] != around(loop) or number in self._fetches:
                continue
            item = number if len(chain) == depth else items.setdefault(chain[depth], number)
            found.setdefault(item, []).append(number)
        return found

    def _sorted(
        self,
        members: dict[int, list[int]],
        waiting: dict[int, set[int]],
        followers: dict[int, list[int]],
        loop: int | None,
    ) -> list[int]:
        ready = [self._priority(members, item) for item, leaders in waiting.items() if not leaders]
        heapq.heapify(ready)
        ordered: list[int] = []
        done: set[int] = set()
        following: int | None = None
        while ready:
            item = heapq.heappop(ready)[1] if following is None else following
            following = None
            if item in done:
                continue
            done.add(item)
            self._run(members[item], loop, ordered)
            for follower in followers[item]:
                waiting[follower].discard(item)
                if not waiting[follower]:
                    heapq.heappush(ready, self._priority(members, follower))
                    if self._continues(members, item, follower):
                        following = follower
        return ordered

    def _run(self, inside: list[int], loop: int | None, ordered: list[int]) -> None:
        """Appends a unit, or all units of an inner loop in order, behind the fetches for them."""
        wanted = (value for number in inside for value in self._drafts[number].reads)
        ordered += [self._unfetched.pop(v) for v in wanted if v in self._unfetched]
        if self._is_loop(inside, loop):
            depth = len(self._graph.program.loops_around(loop))
            ordered += self.of(
                self._graph.program.loops_around(self._drafts[inside[0]].loop)[depth]
            )
            return
        ordered += inside
        self._unread.subtract(self._drafts[inside[0]].reads)

    def _is_loop(self, inside: list[int], loop: int | None) -> bool:
        return self._drafts[inside[0]].loop != loop

    def _priority(self, members: dict[int, list[int]], item: int) -> tuple[bool, int]:
        phases = {self._drafts[d].phase for d in members[item]}
        return phases != {Phase.UPDATE}, item

    def _continues(self, members: dict[int, list[int]], item: int, follower: int) -> bool:
        if len(members[item]) > 1 or len(members[follower]) > 1:
            return False
        drafts = self._drafts
        return _continues(self._graph, drafts[item], drafts[follower], self._unread)


def _continues(graph: HloGraph, unit: Unit, reader: Unit, unread: Mapping[int, int]) -> bool:
    """Whether `reader` may write over the result of `unit`, which nothing else reads any more."""
    results = graph.program.result_values
    return (
        len(unit.outputs) == 1
        and unit.outputs[0] not in results
        and unread[unit.outputs[0]] == 1
        and unit.outputs[0] in overwritable(graph, reader)
    )


def _dependencies(graph: HloGraph, drafts: list[Unit], aliased: dict[int, int]) -> list[set[int]]:
    """For each draft the earlier ones that it must follow.

    These are the producers of what it reads; where it overwrites a donated argument, that
    argument's earlier readers; and where it has effects, the one before it that has.
    """
    producer = {output: k for k, draft in enumerate(drafts) for output in draft.outputs}
    readers: dict[int, list[int]] = {}
    for k, draft in enumerate(drafts):
        for value in draft.reads:
            readers.setdefault(value, []).append(k)
    waits = []
    effects: list[int] = []
    for k, draft in enumerate(drafts):
        leaders = {producer[v] for v in draft.reads if v in producer}
        overwritten = [aliased[o] for o in draft.outputs if o in aliased]
        leaders.update(r for a in overwritten for r in readers.get(a, ()) if r < k)
        if graph.program.equations[draft.root].has_effects:
            leaders.update(effects[-1:])
            effects.append(k)
        waits.append(leaders)
    return waits
