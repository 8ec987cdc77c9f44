"""A problem restricted to the options that may still be in a better solution."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kiwi.solver.problem import Edge, Load, Node, Problem


@dataclass(frozen=True, eq=False)
class Restricted:
    """A problem in which nodes have only some of their options, and the way back.

    - `kept`: for each node, the indices of its remaining options in the whole problem, ascending.
    """

    problem: Problem
    kept: tuple[np.ndarray, ...]

    @classmethod
    def nothing(cls, problem: Problem) -> "Restricted":
        """Returns the restriction that keeps all options."""
        return cls(problem, tuple(np.arange(node.costs.size) for node in problem.nodes))

    def to(self, keep: Sequence[np.ndarray]) -> "Restricted":
        """Returns the problem with the options that `keep`, a mask for each node, marks."""
        rows = [np.flatnonzero(mask) for mask in keep]
        nodes = tuple(
            _node(node, options) for node, options in zip(self.problem.nodes, rows, strict=True)
        )
        edges = tuple(_edge(edge, rows[edge.tail], rows[edge.head]) for edge in self.problem.edges)
        kept = tuple(before[options] for before, options in zip(self.kept, rows, strict=True))
        return Restricted(replace(self.problem, nodes=nodes, edges=edges), kept)

    def whole(self, solution: Sequence[int]) -> tuple[int, ...]:
        """Returns a solution of this problem as a solution of the whole problem."""
        return tuple(
            int(options[option]) for options, option in zip(self.kept, solution, strict=True)
        )

    def own(self, solution: Sequence[int]) -> tuple[int, ...] | None:
        """Returns a solution of the whole problem as a solution of this problem; None if it uses a
        removed option."""
        places = [
            int(np.searchsorted(kept_options, option))
            for kept_options, option in zip(self.kept, solution, strict=True)
        ]
        options = tuple(places)
        is_kept = all(
            place < len(kept_options)
            for kept_options, place in zip(self.kept, options, strict=True)
        )
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
