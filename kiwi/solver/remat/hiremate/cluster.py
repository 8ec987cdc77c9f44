"""H-clusters (definition 3.2.1): forward operators with their backward operators.

A cluster is taken out of its graph as a graph of its own with local numbers, so that clusters
that consist of the same operators are equal and can be solved in another process.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kiwi.solver.remat.graph import RematGraph, extract
from kiwi.solver.remat.hiremate.partition import ForwardGraph, Tree
from kiwi.solver.remat.linearise import (
    backward_operators,
    backward_owners,
    check_has_backward,
)

Steps = tuple[int, ...]
StepPair = tuple[Steps, Steps]
"""Forward and backward operators of one way to run a cluster."""


@dataclass(frozen=True)
class Cluster:
    """Operators of `graph`, all of which belong to the cluster.

    **Attributes:**

    - `graph`: forward operators 0 … `forward_count` - 1, then backward ones, in the given order.
      Values that the cluster only reads have size zero, but for gradients.
    - `interface`: values that are written here and read outside, or are results.
    - `gradients`: values that backward operators read and that others' backward parts write.
    - `children`: operators of the parts, in topological order; none where there is one operator.
    """

    graph: RematGraph
    forward_count: int
    interface: frozenset[int]
    gradients: frozenset[int]
    children: tuple[Steps, ...]

    @property
    def forward(self) -> Steps:
        """Forward operators in the given order."""
        return tuple(range(self.forward_count))

    @property
    def backward(self) -> Steps:
        """Backward operators in the given order."""
        return tuple(range(self.forward_count, len(self.graph.operators)))

    @cached_property
    def outputs(self) -> frozenset[int]:
        """Interface values that forward operators write."""
        return frozenset(v for v in self.interface if self.is_forward(self.graph.producer[v]))

    def is_forward(self, operator: int) -> bool:
        """Whether `operator` is a forward operator."""
        return operator < self.forward_count


@dataclass(frozen=True)
class Roles:
    """Forward operators in the given order, and the owner of each backward operator."""

    forward: Steps
    owner: dict[int, int]


def find_roles(graph: RematGraph) -> Roles:
    """Splits operators; a backward operator is owned by the forward operator it is paired with.

    It is never owned by a later one than an operator that it depends on (property 1).
    Raises `kiwi.errors.InvalidProblemError` if no backward operator is known.
    """
    check_has_backward(graph)
    backward = backward_operators(graph)
    forward = tuple(k for k in graph.order if k not in backward)
    rank = {k: place for place, k in enumerate(forward)}
    behind = backward_owners(graph, backward, rank, len(forward) - 1)
    return Roles(forward, {k: forward[place] for k, place in behind.items()})


def forward_graph(graph: RematGraph, roles: Roles) -> ForwardGraph:
    """The graph that is partitioned; nodes are places in `roles.forward`."""
    place = {k: index for index, k in enumerate(roles.forward)}
    before: list[set[int]] = [set() for _ in roles.forward]
    for k in graph.order:
        for p in graph.predecessors(k):
            if k in place:
                before[place[k]].add(place[p])
            elif p not in place and roles.owner[p] != roles.owner[k]:
                before[place[roles.owner[p]]].add(place[roles.owner[k]])
    crossing = []
    for value, writer in enumerate(graph.producer):
        readers = tuple(place[k] for k in graph.readers[value] if k in place)
        if writer in place or (writer < 0 and len(readers) > 1):
            size_bytes = graph.values[value].size_bytes if writer in place else 0
            crossing.append((place.get(writer, -1), readers, size_bytes))
    return ForwardGraph(tuple(tuple(sorted(each)) for each in before), tuple(crossing))


@dataclass(frozen=True)
class Hierarchy:
    """A cluster with the operators' numbers in the whole graph, and its parts."""

    cluster: Cluster
    operators: Steps
    children: tuple["Hierarchy", ...]

    @property
    def height(self) -> int:
        """0 for a single operator."""
        return 1 + max((child.height for child in self.children), default=-1)

    def parts(self) -> Iterator["Hierarchy"]:
        """All below."""
        for child in self.children:
            yield child
            yield from child.parts()


def whole(graph: RematGraph, roles: Roles, trees: tuple[Tree, ...]) -> Hierarchy:
    """The hierarchy of all operators; its parts are `trees`."""
    every = Tree(tuple(range(len(roles.forward))), trees)
    return _Extraction(graph, roles).hierarchy(every)


class _Extraction:
    """Takes clusters out of one graph."""

    def __init__(self, graph: RematGraph, roles: Roles) -> None:
        self._graph, self._roles = graph, roles
        self._rank = {k: place for place, k in enumerate(graph.order)}
        self._owned: dict[int, list[int]] = {}
        for k, owner in roles.owner.items():
            self._owned.setdefault(owner, []).append(k)

    def hierarchy(self, tree: Tree) -> Hierarchy:
        forward = tuple(self._roles.forward[place] for place in tree.operators)
        owned = (b for k in forward for b in self._owned.get(k, ()))
        backward = tuple(sorted(owned, key=self._rank.__getitem__))
        children = tuple(self.hierarchy(child) for child in tree.children)
        return Hierarchy(self._cluster(forward, backward, children), forward + backward, children)

    def _cluster(self, forward: Steps, backward: Steps, children: tuple[Hierarchy, ...]) -> Cluster:
        operators = forward + backward
        local = {k: place for place, k in enumerate(operators)}
        taken = [self._graph.operators[k] for k in operators]
        written = {v for each in taken for v in each.outputs}
        gradients = {v for each in taken for v in each.inputs if self._is_gradient(v)} - written
        interface = leaving(self._graph, operators)
        part, number = extract(self._graph, taken, written | gradients, interface)
        return Cluster(
            part,
            len(forward),
            part.results,
            frozenset(number[v] for v in gradients),
            tuple(tuple(local[k] for k in child.operators) for child in children),
        )

    def _is_gradient(self, value: int) -> bool:
        return self._graph.producer[value] in self._roles.owner


def leaving(graph: RematGraph, operators: Steps) -> set[int]:
    """Values that `operators` write and others read, or that are results."""
    inside = frozenset(operators)
    return {
        v
        for k in operators
        for v in graph.operators[k].outputs
        if v in graph.results or not inside.issuperset(graph.readers[v])
    }
