"""H-Partition (Zhao's thesis, section 3.3, algorithm 7): forward operators in recursive groups.

**Graph.** Nodes are forward operators. There is an edge p → q if q reads from p, or if a backward
operator of p depends on one of q. Both directions of the step then run through convex groups
without cycles (property 1).

**Candidates.** For each node x, a candidate is the set of all nodes on the paths from its immediate
dominator a(x) to x, with or without either end. Candidates whose heads differ may overlap, and
their union is convex (theorem 3.3.2). The candidate that is cheapest by equation 3.1 becomes a
group. Candidates that touch the group take it in whole, and are dropped if they grow too large.

The partition differs from the text in two points. First, nodes without predecessors, except the
first node, are left out when dominators are computed. Otherwise a single operator that reads only
arguments would make the virtual root dominate all that follows. No path leads back into these
nodes, so that groups stay convex. Second, if few candidates are small enough, neighbours in
topological order are joined, cheapest first. (Steps from JAX have no dominators within layers,
because the readers of the residual stream make its sums.) Runs of neighbours are convex in any
graph, and the depth of the hierarchy stays logarithmic.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

ALPHA = 0.5
"""The exponent of the number of operators in equation 3.1."""
ROOT = -1
"""The virtual root, which precedes all nodes without predecessors."""
LEAST_PROGRESS = 0.75
"""A level whose groups number more than this share of its nodes is divided into runs instead."""


@dataclass(frozen=True)
class Tree:
    """A group of operators. A leaf has one operator and no children."""

    operators: tuple[int, ...]
    children: tuple["Tree", ...] = ()


@dataclass(frozen=True)
class ForwardGraph:
    """The graph to divide, with nodes 0 … n - 1 in topological order.

    - `before[q]`: the nodes with an edge to q.
    - `crossing`: values as (writer or -1, readers, bytes). A value crosses the border of a group
      unless its writer and readers are all inside, or all outside.
    """

    before: tuple[tuple[int, ...], ...]
    crossing: tuple[tuple[int, tuple[int, ...], int], ...]


def partition(graph: ForwardGraph, most_top: int, most_lower: int) -> tuple[Tree, ...]:
    """Returns at most `most_top` trees in topological order. A node of a tree has at most
    `most_lower` children."""
    trees = [Tree((k,)) for k in range(len(graph.before))]
    while len(trees) > most_top:
        level = _Level(graph, trees, most_lower)
        groups = level.groups(most_top)
        if len(groups) > LEAST_PROGRESS * len(trees):
            groups = level.runs(most_top)
        trees = _ordered(graph, [_joined([trees[k] for k in group]) for group in groups])
    return tuple(trees)


def _joined(members: list[Tree]) -> Tree:
    if len(members) == 1:
        return members[0]
    operators = sorted(k for member in members for k in member.operators)
    return Tree(tuple(operators), tuple(members))


def condensed(graph: ForwardGraph, trees: Sequence[Tree]) -> list[set[int]]:
    """Returns, for each tree, the other trees with an edge to it."""
    place = {k: index for index, tree in enumerate(trees) for k in tree.operators}
    return [
        {place[predecessor] for k in tree.operators for predecessor in graph.before[k]} - {index}
        for index, tree in enumerate(trees)
    ]


def _ordered(graph: ForwardGraph, trees: list[Tree]) -> list[Tree]:
    """Returns the trees in topological order, by their first operators if there is a choice."""
    sorter = TopologicalSorter(dict(enumerate(condensed(graph, trees))))
    sorter.prepare()
    ready: list[tuple[int, int]] = []
    ordered = []
    while sorter.is_active():
        for k in sorter.get_ready():
            heapq.heappush(ready, (trees[k].operators[0], k))
        _, k = heapq.heappop(ready)
        ordered.append(trees[k])
        sorter.done(k)
    return ordered


class _Level:
    """One phase of algorithm 7. The nodes are `trees`, which `groups` or `runs` joins."""

    def __init__(self, graph: ForwardGraph, trees: Sequence[Tree], most: int) -> None:
        self._graph, self._trees, self._most = graph, trees, most
        self._before = condensed(graph, trees)
        self._values = self._crossing_values()
        self._touching: list[set[int]] = [set() for _ in trees]
        self._candidates: list[frozenset[int]] = []
        self._heap: list[tuple[float, int, int]] = []
        for candidate in dict.fromkeys(self._all_candidates()):
            self._add(candidate)

    def groups(self, most_top: int) -> list[list[int]]:
        """Returns the nodes of each group, single nodes included."""
        group_of = {k: frozenset((k,)) for k in range(len(self._trees))}
        count = len(self._trees)
        while self._heap and count > most_top:
            _, _, index = heapq.heappop(self._heap)
            chosen = self._candidates[index]
            replaced = {group_of[k] for k in chosen}
            if len(replaced) == 1:
                continue
            count -= len(replaced) - 1
            group_of.update(dict.fromkeys(chosen, chosen))
            self._grow_candidates(chosen)
        return [sorted(group) for group in dict.fromkeys(group_of.values())]

    def runs(self, most_top: int) -> list[list[int]]:
        """Returns neighbours in topological order, joined two by two, the cheapest pair first."""
        count = len(self._trees)
        end_of = {k: k + 1 for k in range(count)}
        start_of = {end: start for start, end in end_of.items()}
        heap = [self._pair(k, k + 1, k + 2) for k in range(count - 1)]
        heapq.heapify(heap)
        while heap and len(end_of) > most_top:
            _, start, middle, end = heapq.heappop(heap)
            if end_of.get(start) != middle or end_of.get(middle) != end:
                continue
            del end_of[middle], start_of[middle]
            end_of[start], start_of[end] = end, start
            if start in start_of and end - start_of[start] <= self._most:
                heapq.heappush(heap, self._pair(start_of[start], start, end))
            if end in end_of and end_of[end] - start <= self._most:
                heapq.heappush(heap, self._pair(start, end, end_of[end]))
        return [list(range(start, end)) for start, end in sorted(end_of.items())]

    def _pair(self, start: int, middle: int, end: int) -> tuple[float, int, int, int]:
        return self._score(frozenset(range(start, end))), start, middle, end

    def _grow_candidates(self, chosen: frozenset[int]) -> None:
        touched = {index for k in chosen for index in self._touching[k]}
        for index in sorted(touched):
            candidate = self._candidates[index]
            if chosen <= candidate or candidate <= chosen:
                continue
            for k in candidate:
                self._touching[k].discard(index)
            self._candidates[index] = frozenset((next(iter(chosen)),))
            if len(candidate | chosen) <= self._most:
                self._add(candidate | chosen)

    def _add(self, candidate: frozenset[int]) -> None:
        index = len(self._candidates)
        self._candidates.append(candidate)
        for k in candidate:
            self._touching[k].add(index)
        heapq.heappush(self._heap, (self._score(candidate), min(candidate), index))

    def _score(self, candidate: frozenset[int]) -> float:
        """Returns the price of a candidate (equation 3.1)."""
        touching = {value for k in candidate for value in self._values[k]}
        size_bytes = 0
        for value in touching:
            writer, readers, value_bytes = value
            inside = sum(k in candidate for k in readers) + (writer in candidate)
            if inside <= len(readers):
                size_bytes += value_bytes
        operators = sum(len(self._trees[k].operators) for k in candidate)
        return size_bytes * operators**ALPHA

    def _crossing_values(self) -> list[list[tuple[int, tuple[int, ...], int]]]:
        """Returns, for each node, the values between nodes that it writes or reads."""
        place = {k: index for index, tree in enumerate(self._trees) for k in tree.operators}
        crossing: list[list[tuple[int, tuple[int, ...], int]]] = [[] for _ in self._trees]
        for writer, readers, size_bytes in self._graph.crossing:
            home = place.get(writer, ROOT)
            around = tuple(sorted({place.get(k, ROOT) for k in readers} - {home}))
            if around:
                for k in {home, *around} - {ROOT}:
                    crossing[k].append((home, around, size_bytes))
        return crossing

    def _all_candidates(self) -> Iterator[frozenset[int]]:
        sources = {k for k, leaders in enumerate(self._before) if not leaders and k}
        before = {
            k: sorted(leaders - sources)
            for k, leaders in enumerate(self._before)
            if k not in sources
        }
        parent = immediate_dominators(before)
        for x, head in parent.items():
            between = _between(before, head, x, self._most)
            if between is None:
                continue
            ends = [set(), {x}] if head == ROOT else [set(), {x}, {head}, {head, x}]
            for extra in ends:
                candidate = frozenset(between | extra)
                if 2 <= len(candidate) <= self._most:
                    yield candidate
        yield from self._sources_with_reader(sources)

    def _sources_with_reader(self, sources: set[int]) -> Iterator[frozenset[int]]:
        """Yields pairs of a source that only one node reads and that node."""
        readers: dict[int, list[int]] = {k: [] for k in sources}
        for k, leaders in enumerate(self._before):
            for source in leaders & sources:
                readers[source].append(k)
        for source in sorted(sources):
            if len(readers[source]) == 1:
                yield frozenset((source, readers[source][0]))


def immediate_dominators(before: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Returns each node's immediate dominator (Cooper, Harvey, Kennedy 2001, on an acyclic graph).

    Keys are in topological order. `ROOT` precedes all nodes without predecessors.
    """
    parent: dict[int, int] = {}
    depth = {ROOT: 0}
    for k, leaders in before.items():
        meeting = leaders[0] if leaders else ROOT
        for other in leaders[1:]:
            while other != meeting:
                if depth[other] >= depth[meeting]:
                    other = parent[other]
                else:
                    meeting = parent[meeting]
        parent[k], depth[k] = meeting, depth[meeting] + 1
    return parent


def _between(
    before: Mapping[int, Sequence[int]], head: int, node: int, most: int
) -> set[int] | None:
    """Returns the nodes strictly between dominator and node; None if more than `most`."""
    inside: set[int] = set()
    pending = [k for k in before[node] if k != head]
    while pending:
        k = pending.pop()
        if k not in inside:
            inside.add(k)
            if len(inside) > most:
                return None
            pending += [predecessor for predecessor in before[k] if predecessor != head]
    return inside
