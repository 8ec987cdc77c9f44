"""Replaces options by others of equal cost that hold less memory.

If the limit does not bind, a search has no reason to prefer either, and may keep values far longer
than anything reads them.
"""

import functools
from collections.abc import Sequence

import numpy as np

from kiwi.interval import Interval, bytes_at
from kiwi.solver.problem import Edge, Node, Problem


def settled(problem: Problem, solution: Sequence[int]) -> tuple[int, ...]:
    """A solution of the same cost in which no single node could hold less memory.

    A node's option is replaced by another that costs no more beside the neighbours' options, loads
    all channels alike, so that as much of it is hidden, and holds no more memory at any time; among
    equals by the first. Peak and cost can only fall. Nodes are taken from the last to the first:
    the readers for which a node is held are settled before the node.
    """
    choice = list(solution)
    around: list[list[Edge]] = [[] for _ in problem.nodes]
    for edge in problem.edges:
        around[edge.tail].append(edge)
        around[edge.head].append(edge)
    for index, node in reversed(list(enumerate(problem.nodes))):
        own = choice[index]
        rank, memories = _rank(node, own), (node.usage, node.host_usage or ((),) * len(node.usage))
        candidates = [
            int(option)
            for option in np.flatnonzero(node.costs <= node.costs[own])
            if _rank(node, int(option)) < rank
            and all(_within(usage[option], usage[own]) for usage in memories)
            and all(load.amounts[option] == load.amounts[own] for load in node.loads)
        ]
        cost = _edge_cost(around[index], index, choice, choice[index])
        for option in sorted(candidates, key=functools.partial(_rank, node)):
            if _edge_cost(around[index], index, choice, option) <= cost:
                choice[index] = option
                break
    return tuple(choice)


def _rank(node: Node, option: int) -> tuple[int, int]:
    """Bytes times points of time, and the option."""
    return sum(i.bytes * (i.end - i.start) for i in node.usage[option]), option


def _edge_cost(edges: Sequence[Edge], node: int, choice: Sequence[int], option: int) -> float:
    """The cost of a node's edges if it takes an option."""
    total = 0.0
    for edge in edges:
        is_tail = edge.tail == node
        tail, head = (option, choice[edge.head]) if is_tail else (choice[edge.tail], option)
        total += edge.costs[edge.cell(tail, head)]
    return float(total)


def _within(usage: Sequence[Interval], other: Sequence[Interval]) -> bool:
    """Whether `usage` never exceeds `other`. Only times at which it may rise are checked."""
    times = {i.start for i in usage} | {i.end for i in other}
    return all(bytes_at(usage, time) <= bytes_at(other, time) for time in times)
