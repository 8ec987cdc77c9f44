"""H-clusters (definition 3.2.1): forward operators with their backward operators.

A cluster is extracted as a graph with local numbers. Clusters that consist of the same operators
are then equal, and a cluster can be solved in another process.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from kiwi.literature.remat.chain import Steps, backward_operators, backward_owners
from kiwi.literature.remat.graph import RematGraph, extract
from kiwi.literature.remat.hiremate.partition import ForwardGraph, Tree

StepPair = tuple[Steps, Steps]
"""The forward operators and the backward operators of one way to run a cluster."""


@dataclass(frozen=True)
class Cluster:
    """A part of the step as a graph of its own.

    - `graph`: the forward operators 0 … `forward_count` - 1, then the backward operators, in the
      given order. Values that the cluster only reads have size zero, except gradients.
    - `interface`: values that the cluster writes and that others read or that are results.
    - `gradients`: values that the cluster's backward operators read and backward operators of other
      clusters write.
    - `children`: the operators of each part, in topological order; empty if there is one operator.
    """

    graph: RematGraph
    forward_count: int
    interface: frozenset[int]
    gradients: frozenset[int]
    children: tuple[Steps, ...]

    @property
    def forward(self) -> Steps:
        """The forward operators in the given order."""
        return tuple(range(self.forward_count))

    @property
    def backward(self) -> Steps:
        """The backward operators in the given order."""
        return tuple(range(self.forward_count, len(self.graph.operators)))

    @cached_property
    def outputs(self) -> frozenset[int]:
        """The interface values that forward operators write."""
        producer = self.graph.producer
        return frozenset(value for value in self.interface if producer[value] < self.forward_count)


@dataclass(frozen=True)
class Hierarchy:
    """A cluster with the numbers of its operators in the whole graph, and its parts."""

    cluster: Cluster
    operators: Steps
    children: tuple["Hierarchy", ...]

    @property
    def height(self) -> int:
        """The number of levels below the cluster; 0 for a single operator."""
        return 1 + max((child.height for child in self.children), default=-1)

    def parts(self) -> Iterator["Hierarchy"]:
        """Yields all hierarchies below this one."""
        for child in self.children:
            yield child
            yield from child.parts()


class Roles:
    """The forward operators in the given order, and the owner of each backward operator.

    The owner is the forward operator with which the backward operator is paired. It is never later
    than the owner of an operator on which the backward operator depends (property 1). Raises
    `kiwi.errors.InvalidProblemError` if no backward operator is known.
    """

    def __init__(self, graph: RematGraph) -> None:
        backward = backward_operators(graph)
        self._graph = graph
        self.forward = tuple(k for k in graph.order if k not in backward)
        self._place = {k: place for place, k in enumerate(self.forward)}
        owner_places = backward_owners(graph, backward, self._place, len(self.forward) - 1)
        self._owner = {k: self.forward[place] for k, place in owner_places.items()}
        self._rank = {k: place for place, k in enumerate(graph.order)}
        self._owned: dict[int, list[int]] = {}
        for k, owner in self._owner.items():
            self._owned.setdefault(owner, []).append(k)

    def forward_graph(self) -> ForwardGraph:
        """Returns the graph that is partitioned. Its nodes are places in `forward`."""
        graph, place, owner = self._graph, self._place, self._owner
        before: list[set[int]] = [set() for _ in self.forward]
        for k in graph.order:
            for predecessor in graph.predecessors(k):
                if k in place:
                    before[place[k]].add(place[predecessor])
                elif predecessor not in place and owner[predecessor] != owner[k]:
                    before[place[owner[predecessor]]].add(place[owner[k]])
        crossing = []
        for value, writer in enumerate(graph.producer):
            readers = tuple(place[k] for k in graph.readers[value] if k in place)
            if writer in place or (writer < 0 and len(readers) > 1):
                size_bytes = graph.values[value].size_bytes if writer in place else 0
                crossing.append((place.get(writer, -1), readers, size_bytes))
        return ForwardGraph(tuple(tuple(sorted(nodes)) for nodes in before), tuple(crossing))

    def whole(self, trees: tuple[Tree, ...]) -> Hierarchy:
        """Returns the hierarchy of all operators, whose parts are `trees`."""
        return self._hierarchy(Tree(tuple(range(len(self.forward))), trees))

    def _hierarchy(self, tree: Tree) -> Hierarchy:
        forward = tuple(self.forward[place] for place in tree.operators)
        owned = (owned_operator for k in forward for owned_operator in self._owned.get(k, ()))
        backward = tuple(sorted(owned, key=self._rank.__getitem__))
        children = tuple(map(self._hierarchy, tree.children))
        return Hierarchy(self._cluster(forward, backward, children), forward + backward, children)

    def _cluster(self, forward: Steps, backward: Steps, children: tuple[Hierarchy, ...]) -> Cluster:
        graph, operators = self._graph, forward + backward
        local = {k: place for place, k in enumerate(operators)}
        taken = [graph.operators[k] for k in operators]
        written = {value for operator in taken for value in operator.outputs}
        read = {
            value
            for operator in taken
            for value in operator.inputs
            if graph.producer[value] in self._owner
        }
        gradients, interface = read - written, leaving(graph, operators)
        part, number = extract(graph, taken, written | gradients, interface)
        return Cluster(
            part,
            len(forward),
            part.results,
            frozenset(number[value] for value in gradients),
            tuple(tuple(local[k] for k in child.operators) for child in children),
        )


def leaving(graph: RematGraph, operators: Steps) -> set[int]:
    """Returns the values of `operators` that other operators read or that are results."""
    inside = frozenset(operators)
    return {
        value
        for k in operators
        for value in graph.operators[k].outputs
        if value in graph.results or not inside.issuperset(graph.readers[value])
    }
