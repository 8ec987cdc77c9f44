"""Replaces options of a solution by others that cost no more and hold less memory.

If the limit does not bind, a search has no reason to prefer these options. Without the replacement
a solution may hold values long after their last reader.
"""

import functools
from collections.abc import Sequence

import numpy as np

from kiwi.interval import Interval, bytes_at
from kiwi.solver.problem import Edge, Node, Problem


def settled(problem: Problem, solution: Sequence[int]) -> tuple[int, ...]:
    """Returns a solution that costs no more than `solution`, with options that hold less memory.

    The new option of a node costs no more beside the neighbours' options, and holds no more memory
    at any time. It has the same load of every channel, so that as much of the cost stays hidden.
    Among such options, the one with the fewest bytes times points of time is taken, and the first
    of equal ones. Neither peak nor cost can rise. Nodes are settled from the last to the
    first, since a node is held for readers that come after it.
    """
    choice = list(solution)
    around: list[list[Edge]] = [[] for _ in problem.nodes]
    for edge in problem.edges:
        around[edge.tail].append(edge)
        around[edge.head].append(edge)
    for index, node in reversed(list(enumerate(problem.nodes))):
        current = choice[index]
        rank, memories = (
            _rank(node, current),
            (node.usage, node.host_usage or ((),) * len(node.usage)),
        )
        candidates = [
            int(option)
            for option in np.flatnonzero(node.costs <= node.costs[current])
            if _rank(node, int(option)) < rank
            and all(_within(usage[option], usage[current]) for usage in memories)
            and all(load.amounts[option] == load.amounts[current] for load in node.loads)
        ]
        cost = _edge_cost(around[index], index, choice, choice[index])
        for option in sorted(candidates, key=functools.partial(_rank, node)):
            if _edge_cost(around[index], index, choice, option) <= cost:
                choice[index] = option
                break
    return tuple(choice)


def _rank(node: Node, option: int) -> tuple[int, int]:
    """Returns the bytes times points of time that an option holds, and the option's index."""
    return sum(
        interval.bytes * (interval.end - interval.start) for interval in node.usage[option]
    ), option


def _edge_cost(edges: Sequence[Edge], node: int, choice: Sequence[int], option: int) -> float:
    """Returns the cost of the edges of `node` if it takes `option` and its neighbours keep
    `choice`."""
    total = 0.0
    for edge in edges:
        is_tail = edge.tail == node
        tail, head = (option, choice[edge.head]) if is_tail else (choice[edge.tail], option)
        total += edge.costs[edge.cell(tail, head)]
    return float(total)


def _within(usage: Sequence[Interval], other: Sequence[Interval]) -> bool:
    """Whether `usage` never exceeds `other`. Only times at which the difference may rise are
    checked."""
    times = {interval.start for interval in usage} | {interval.end for interval in other}
    return all(bytes_at(usage, time) <= bytes_at(other, time) for time in times)
