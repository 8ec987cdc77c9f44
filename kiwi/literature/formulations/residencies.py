"""Formulations as Kiwi's `Problem`: the option of an operator is (strategy, residency)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kiwi.literature.formulations.sharded_graph import (
    Operator,
    Read,
    ShardedGraph,
    Solution,
    repeated_before,
)
from kiwi.solver.problem import Edge, Interval, Node, Problem


@dataclass(frozen=True)
class Residency:
    """When an operator runs again, and when its result is in memory.

    - `held`: half-open times, in order.
    - `again`: times before which it runs again, each time with what it reads.
    - `working`: times at which its workspace is needed.
    """

    held: tuple[tuple[int, int], ...]
    again: tuple[int, ...] = ()
    working: tuple[int, ...] = ()


Finds = Callable[[Residency, Residency], bool]
"""Whether all runs of a reader find the value of a producer."""


@dataclass(frozen=True, eq=False)
class ResidencyProblem:
    """A `Problem` with what its options mean: strategies x residencies, strategy-major."""

    graph: ShardedGraph
    residencies: tuple[tuple[Residency, ...], ...]
    problem: Problem

    def read_answer(self, solution: tuple[int, ...]) -> Solution:
        """Schedule and strategies of a solution: what runs again does so just before it is used."""
        pairs = [divmod(o, len(r)) for o, r in zip(solution, self.residencies, strict=True)]
        again = ((i, t) for i, (_, k) in enumerate(pairs) for t in self.residencies[i][k].again)
        return repeated_before(self.graph, again), tuple(s for s, _ in pairs)


def residency_problem(
    graph: ShardedGraph,
    residencies: Sequence[tuple[Residency, ...]],
    limit_bytes: int,
    finds: Finds | None = None,
) -> ResidencyProblem:
    """The problem of choosing among `residencies` of each operator.

    An edge costs resharding for each run of the reader. It is infinite where the reader does not
    find the value, if `finds` is given.
    """
    found = tuple(residencies)
    nodes = tuple(map(_node, graph.operators, found))
    edges = [_read_edge(read, found, finds) for read in graph.reads]
    for tie in graph.ties:
        ones = np.ones((len(found[tie.first]), len(found[tie.second])))
        edges.append(Edge(tie.first, tie.second, np.kron(tie.seconds, ones)))
    problem = Problem(nodes, tuple(edges), limit_bytes, len(nodes))
    return ResidencyProblem(graph, found, problem)


def _runs(residencies: Sequence[Residency]) -> np.ndarray:
    return np.array([1.0 + len(r.again) for r in residencies])


def _node(o: Operator, residencies: tuple[Residency, ...]) -> Node:
    costs = np.outer(o.seconds, _runs(residencies)) + np.array(o.once)[:, None]
    usage = tuple(
        tuple(Interval(a, b, result) for a, b in r.held)
        + tuple(Interval(t, t + 1, workspace) for t in r.working if workspace)
        for result, workspace in zip(o.result_bytes, o.workspace_bytes, strict=True)
        for r in residencies
    )
    return Node(o.name, costs.ravel(), usage)


def _read_edge(
    read: Read, residencies: Sequence[tuple[Residency, ...]], finds: Finds | None
) -> Edge:
    tails, heads = residencies[read.producer], residencies[read.reader]
    costs = np.kron(read.seconds, np.tile(_runs(heads), (len(tails), 1)))
    if finds is not None:
        there = np.array([[finds(tail, head) for head in heads] for tail in tails])
        costs += np.tile(np.where(there, 0.0, np.inf), read.seconds.shape)
    return Edge(read.producer, read.reader, costs)
