"""Formulations as Kiwi's `Problem`: an operator's option is a pair (strategy, residency)."""

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
    """The times at which an operator runs again, and the times at which its result is in memory.

    - `held`: half-open intervals of time, in ascending order.
    - `again`: times before which the operator runs again. Each run pays for resharding its
      operands.
    - `working`: times at which the workspace of the operator is needed.
    """

    held: tuple[tuple[int, int], ...]
    again: tuple[int, ...] = ()
    working: tuple[int, ...] = ()


Finds = Callable[[Residency, Residency], bool]
"""Says whether all runs of a reader (second argument) find the value of a producer (first)."""


@dataclass(frozen=True, eq=False)
class ResidencyProblem:
    """A `Problem` with the meaning of its options: strategies x residencies, strategy-major."""

    graph: ShardedGraph
    residencies: tuple[tuple[Residency, ...], ...]
    problem: Problem

    def read_answer(self, solution: tuple[int, ...]) -> Solution:
        """Returns the schedule and the strategies of a solution.

        A recomputation runs just before the time that its residency names.
        """
        pairs = [
            divmod(option, len(residencies))
            for option, residencies in zip(solution, self.residencies, strict=True)
        ]
        again = (
            (i, time)
            for i, (_, number) in enumerate(pairs)
            for time in self.residencies[i][number].again
        )
        return repeated_before(self.graph, again), tuple(strategy for strategy, _ in pairs)


def residency_problem(
    graph: ShardedGraph,
    residencies: Sequence[tuple[Residency, ...]],
    limit_bytes: int,
    finds: Finds | None = None,
) -> ResidencyProblem:
    """Returns the problem of choosing a strategy and one of its `residencies` for each operator.

    An edge costs resharding for each run of the reader. If `finds` is given, the cost is infinite
    for pairs of residencies in which the reader does not find the value.
    """
    options = tuple(residencies)
    nodes = tuple(map(_node, graph.operators, options))
    edges = [_read_edge(read, options, finds) for read in graph.reads]
    for tie in graph.ties:
        ones = np.ones((len(options[tie.first]), len(options[tie.second])))
        edges.append(Edge(tie.first, tie.second, np.kron(tie.seconds, ones)))
    problem = Problem(nodes, tuple(edges), limit_bytes, len(nodes))
    return ResidencyProblem(graph, options, problem)


def _runs(residencies: Sequence[Residency]) -> np.ndarray:
    return np.array([1.0 + len(residency.again) for residency in residencies])


def _node(o: Operator, residencies: tuple[Residency, ...]) -> Node:
    costs = np.outer(o.seconds, _runs(residencies)) + np.array(o.once)[:, None]
    usage = tuple(
        tuple(Interval(begin, end, result) for begin, end in residency.held)
        + tuple(Interval(time, time + 1, workspace) for time in residency.working if workspace)
        for result, workspace in zip(o.result_bytes, o.workspace_bytes, strict=True)
        for residency in residencies
    )
    return Node(o.name, costs.ravel(), usage)


def _read_edge(
    read: Read, residencies: Sequence[tuple[Residency, ...]], finds: Finds | None
) -> Edge:
    tails, heads = residencies[read.producer], residencies[read.reader]
    costs = np.kron(read.seconds, np.tile(_runs(heads), (len(tails), 1)))
    if finds is not None:
        is_found = np.array([[finds(tail, head) for head in heads] for tail in tails])
        costs += np.tile(np.where(is_found, 0.0, np.inf), read.seconds.shape)
    return Edge(read.producer, read.reader, costs)
