"""The order in which sweeps visit the nodes of a problem: by time.

A sweep of message passing carries costs from node to node, as far as neighbours follow each other
in the order. Chains of neighbours are long if producers precede readers and values held from the
start (parameters, constants) stand next to their users. The longer the chains, the fewer sweeps
reach the same bound.
"""

from collections.abc import Callable, Sequence

import numpy as np

from kiwi.solver.edge_tables import offsets, within
from kiwi.solver.problem import Interval, Problem

Uses = tuple[np.ndarray, np.ndarray]
"""Intervals (start, end, bytes), int64 of shape (I, 3), and the option of each, shape (I,)."""


def flat_uses(problem: Problem, order: np.ndarray) -> Uses:
    """Returns the non-empty intervals of all options, with the nodes in `order`.

    Host memory at time t becomes memory at the time `horizon` + t, scaled by the ratio of the two
    limits and rounded up. One limit over twice as many times then replaces both limits.
    """
    nodes = [problem.nodes[i] for i in order]
    uses = _flat([usage for node in nodes for usage in node.usage])
    limit, host_limit = problem.limit_bytes, problem.host_limit_bytes
    if limit is None or host_limit is None or not any(node.host_usage for node in nodes):
        return uses
    none = ((),)
    on_host, owner = _flat(
        [
            usage_of_option
            for node in nodes
            for usage_of_option in node.host_usage or none * node.costs.size
        ],
        lambda held: -(-held * max(1, limit) // max(1, host_limit)),
    )
    on_host[:, :2] += problem.horizon
    owners = np.concatenate([uses[1], owner])
    by_owner = np.argsort(owners, kind="stable")
    return np.concatenate([uses[0], on_host])[by_owner], owners[by_owner]


def _flat(
    lists: Sequence[Sequence[Interval]], counted: Callable[[int], int] = lambda held: held
) -> Uses:
    """Returns the intervals of several lists, one list per option, with bytes scaled by `counted`.

    Options often share one list object, which is read once.
    """
    identity = np.fromiter(map(id, lists), dtype=np.int64, count=len(lists))
    _, first, list_of_option = np.unique(identity, return_index=True, return_inverse=True)
    distinct = [lists[k] for k in first]
    counts = np.array([len(uses) for uses in distinct], dtype=np.int64)
    flat = [(use.start, use.end, counted(use.bytes)) for uses in distinct for use in uses]
    table = np.array(flat, dtype=np.int64).reshape(-1, 3)
    owner = np.repeat(np.arange(len(lists)), counts[list_of_option])
    first = np.repeat(offsets(counts)[list_of_option], counts[list_of_option])
    uses = table[first + within(offsets(counts[list_of_option]))]
    holds = (uses[:, 0] < uses[:, 1]) & (uses[:, 2] > 0)
    return uses[holds], owner[holds]


def time_order(problem: Problem) -> np.ndarray:
    """Returns the nodes, sorted by the time at which they begin to hold memory, shape (n,).

    A node that holds nothing, or holds memory from the start, is placed just before the median of
    the times at which its neighbours begin. Ties keep the order of the problem.
    """
    count = len(problem.nodes)
    sizes = np.array([node.costs.size for node in problem.nodes], dtype=np.int64)
    begin = _begin(flat_uses(problem, np.arange(count)), sizes)
    begins_later = begin > 0
    around: list[list[int]] = [[] for _ in range(count)]
    for edge in problem.edges:
        if begins_later[edge.head]:
            around[edge.tail].append(begin[edge.head])
        if begins_later[edge.tail]:
            around[edge.head].append(begin[edge.tail])
    key = begin.astype(np.float64)
    for i in np.flatnonzero(~begins_later):
        if around[i]:
            key[i] = sorted(around[i])[len(around[i]) // 2] - 0.5
    return np.argsort(key, kind="stable")


def _begin(uses: Uses, sizes: np.ndarray) -> np.ndarray:
    """Returns, for each node, the latest time at which one of its options begins to hold memory,
    shape (n,). Options that hold nothing count as 0."""
    intervals, owner = uses
    never = np.iinfo(np.int64).max
    first = np.full(int(sizes.sum()), never)
    np.minimum.at(first, owner, intervals[:, 0])
    first[first == never] = 0
    return np.maximum.reduceat(first, offsets(sizes)[:-1])
