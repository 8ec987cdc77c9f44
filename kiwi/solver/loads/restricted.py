"""A problem with fewer options: those that may still be in a better solution."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kiwi.solver.problem import Edge, Load, Node, Problem


@dataclass(frozen=True, eq=False)
class Restricted:
    """A problem in which nodes have only some of their options, and the way back.

    - `kept`: for each node the remaining options of the whole problem, ascending.
    """

    problem: Problem
    kept: tuple[np.ndarray, ...]

    @classmethod
    def nothing(cls, problem: Problem) -> "Restricted":
        """All options are left."""
        return cls(problem, tuple(np.arange(node.costs.size) for node in problem.nodes))

    def to(self, keep: Sequence[np.ndarray]) -> "Restricted":
        """The problem with only some of its options, given as a mask for each node."""
        rows = [np.flatnonzero(mask) for mask in keep]
        nodes = tuple(_node(n, own) for n, own in zip(self.problem.nodes, rows, strict=True))
        edges = tuple(_edge(e, rows[e.tail], rows[e.head]) for e in self.problem.edges)
        kept = tuple(before[own] for before, own in zip(self.kept, rows, strict=True))
        return Restricted(replace(self.problem, nodes=nodes, edges=edges), kept)

    def whole(self, solution: Sequence[int]) -> tuple[int, ...]:
        """A solution as one of the whole problem."""
        return tuple(int(own[o]) for own, o in zip(self.kept, solution, strict=True))

    def own(self, solution: Sequence[int]) -> tuple[int, ...] | None:
        """A solution of the whole problem as a solution of this one; None if it uses a removed
        option."""
        places = [int(np.searchsorted(own, o)) for own, o in zip(self.kept, solution, strict=True)]
        options = tuple(places)
        is_kept = all(p < len(own) for own, p in zip(self.kept, options, strict=True))
        return options if is_kept and self.whole(options) == tuple(solution) else None


def _node(node: Node, own: np.ndarray) -> Node:
    usage, on_host = (
        tuple(held[o] for o in own.tolist()) if held else ()
        for held in (node.usage, node.host_usage)
    )
    loads = tuple(Load(x.window, x.channel, x.amounts[own]) for x in node.loads)
    return Node(node.name, node.costs[own], usage, loads=loads, host_usage=on_host)


def _edge(edge: Edge, rows: np.ndarray, columns: np.ndarray) -> Edge:
    return replace(
        edge, parts={}, tail_class=edge.tail_class[rows], head_class=edge.head_class[columns]
    )
