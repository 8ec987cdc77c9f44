"""Nodes with few partners are joined to a neighbour: one node whose options are the pairs.

Between a producer and its reader stands often a third node that is all but decided by the two (a
copy that exists where their layouts differ). Such triangles weaken the relaxation, which looks
at one edge at a time, and stop a search over trees, which cannot contain them. A node k of degree
one or two is joined to its neighbour j where the pairs of options that the edge allows are not
many more than the options of j; k's other edge goes on to j. The options of j that take part in
several such pairs multiply, and stay equal lines in the tables of j's other edges.
"""

import numba
import numpy as np

from kiwi.solver.edge_tables import offsets
from kiwi.solver.network import Network
from kiwi.solver.presolve.rebuild import gathered
from kiwi.solver.presolve.reduction import Reduction

MOST_OPTIONS = 300
"""A node is not joined where more pairs than this would come of it."""
_MOST_GROWTH = 4.0
_MOST_DEGREE = 2


def join(net: Network) -> Reduction:
    """One pass: no node is joined to one that is itself joined to another."""
    parent, edge, pairs = _choose(net, MOST_OPTIONS, _MOST_GROWTH)
    if (parent < 0).all():
        return Reduction.nothing(net)
    root = np.where(parent < 0, np.arange(net.node_count), parent)
    members_start, members = _members(parent)
    joined = np.add.reduceat(pairs, net.option_start[:-1])
    sizes = np.where(np.diff(members_start) > 0, joined, np.diff(net.option_start))
    map_start = offsets(sizes[root])
    mapped = np.arange(map_start[-1]) - np.repeat(map_start[:-1], sizes[root])
    _write_pairs(net, edge, pairs, members_start, members, map_start, mapped)
    kept = parent < 0
    root = (np.cumsum(kept) - 1)[root]
    sizes = sizes[kept]
    if (sizes == 0).any():
        return Reduction.nothing(net, infeasible=True)
    cost = _costs(net, root, offsets(sizes), map_start, mapped)
    small = gathered(net, cost, sizes, root, map_start, mapped, only_choices=False)
    return Reduction(small, root, map_start, mapped)


def _members(parent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nodes joined to each node, as starts and a flat list."""
    joined = np.flatnonzero(parent >= 0)
    order = np.argsort(parent[joined], kind="stable")
    counts = np.bincount(parent[joined], minlength=len(parent))
    return offsets(counts), joined[order]


@numba.njit(cache=True)
def _choose(net, most_options, most_growth):
    """The neighbour that each node is joined to, or -1, the edge between them, and for each option
    how many its node will have of it."""
    count = len(net.option_start) - 1
    parent, edge = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    takes = np.zeros(count, dtype=np.bool_)
    pairs = np.where(net.cost < np.inf, 1, 0)
    for k in range(count):
        degree = net.near_start[k + 1] - net.near_start[k]
        if takes[k] or degree == 0 or degree > _MOST_DEGREE:
            continue
        best = most_options + 1
        for near in range(net.near_start[k], net.near_start[k + 1]):
            e = net.near_edge[near]
            j = net.head[e] if net.tail[e] == k else net.tail[e]
            if parent[j] >= 0:
                continue
            before, after = _pair_counts(net, e, k, j, pairs, False)
            if after < best and after <= most_growth * before:
                best, parent[k], edge[k] = after, j, e
        if parent[k] >= 0:
            takes[parent[k]] = True
            _pair_counts(net, edge[k], k, parent[k], pairs, True)
    return parent, edge, pairs


@numba.njit(cache=True)
def _pair_counts(net, e, k, j, pairs, write):
    """How many options j has, and would have with k; multiplies them in `pairs` where asked."""
    j_is_tail = net.tail[e] == j
    partners = _partners(net, e, k, not j_is_tail)
    classes = net.row_class if j_is_tail else net.col_class
    start = net.row_start[e] if j_is_tail else net.col_start[e]
    first = net.option_start[j]
    before, after = 0, 0
    for b in range(net.option_start[j + 1] - first):
        found = partners[classes[start + b]]
        before += pairs[first + b]
        after += pairs[first + b] * found
        if write:
            pairs[first + b] *= found
    return before, after


@numba.njit(cache=True)
def _partners(net, e, k, k_is_tail):
    """For each line at the other end of an edge the number of options of k that it allows."""
    rows, cols, base = net.row_count[e], net.col_count[e], net.table_start[e]
    members = np.zeros(rows if k_is_tail else cols, dtype=np.int64)
    first = net.option_start[k]
    for o in range(net.option_start[k + 1] - first):
        if net.cost[first + o] < np.inf:
            if k_is_tail:
                members[net.row_class[net.row_start[e] + o]] += 1
            else:
                members[net.col_class[net.col_start[e] + o]] += 1
    found = np.zeros(cols if k_is_tail else rows, dtype=np.int64)
    for a in range(rows):
        for b in range(cols):
            if net.table[base + a * cols + b] < np.inf:
                if k_is_tail:
                    found[b] += members[a]
                else:
                    found[a] += members[b]
    return found


@numba.njit(cache=True)
def _write_pairs(net, edge, pairs, members_start, members, map_start, mapped):
    """The options of all members that each option of a joined node stands for: the options of j in
    order, and for each of them the partners of every member."""
    for j in range(len(members_start) - 1):
        first, last = members_start[j], members_start[j + 1]
        if first == last:
            continue
        base, filled = net.option_start[j], 0
        for b in range(net.option_start[j + 1] - base):
            for x in range(filled, filled + pairs[base + b]):
                mapped[map_start[j] + x] = b
            filled += pairs[base + b]
        block = np.ones(len(pairs[base : net.option_start[j + 1]]), dtype=np.int64)
        for m in range(first, last):
            k = members[m]
            _write_member(net, edge[k], k, j, pairs, block, mapped[map_start[k] :])


@numba.njit(cache=True)
def _write_member(net, e, k, j, pairs, block, out):
    """One member's options. Each of its partners of option b is written `block[b]` times in a row,
    and the whole repeated until all pairs of b have one; `block` then grows by its number."""
    k_is_tail = net.tail[e] == k
    start, options = _partner_lists(net, e, k, k_is_tail)
    classes = net.col_class if k_is_tail else net.row_class
    line_of = net.col_start[e] if k_is_tail else net.row_start[e]
    base, filled = net.option_start[j], 0
    for b in range(len(block)):
        line = classes[line_of + b]
        found = start[line + 1] - start[line]
        for x in range(pairs[base + b]):
            out[filled + x] = options[start[line] + (x // block[b]) % found]
        filled += pairs[base + b]
        block[b] *= max(1, found)


@numba.njit(cache=True)
def _partner_lists(net, e, k, k_is_tail):
    """For each line at the other end of an edge the options of k that it allows, as starts and a
    flat list."""
    found = _partners(net, e, k, k_is_tail)
    start = np.zeros(len(found) + 1, dtype=np.int64)
    start[1:] = np.cumsum(found)
    options = np.empty(start[-1], dtype=np.int64)
    filled = start[:-1].copy()
    cols, first = net.col_count[e], net.option_start[k]
    for o in range(net.option_start[k + 1] - first):
        if net.cost[first + o] == np.inf:
            continue
        mine = net.row_class[net.row_start[e] + o] if k_is_tail else -1
        if not k_is_tail:
            mine = net.col_class[net.col_start[e] + o]
        for line in range(len(found)):
            cell = mine * cols + line if k_is_tail else line * cols + mine
            if net.table[net.table_start[e] + cell] < np.inf:
                options[filled[line]] = o
                filled[line] += 1
    return start, options


@numba.njit(cache=True)
def _costs(net, root, starts, map_start, mapped):
    """Costs of all joined nodes' options, and of the edges among them."""
    total = np.zeros(starts[-1])
    for i in range(len(root)):
        for x in range(map_start[i + 1] - map_start[i]):
            cost = net.cost[net.option_start[i] + mapped[map_start[i] + x]]
            total[starts[root[i]] + x] += cost
    for e in range(len(net.tail)):
        tail, head = net.tail[e], net.head[e]
        if root[tail] != root[head]:
            continue
        for x in range(map_start[tail + 1] - map_start[tail]):
            row = net.row_class[net.row_start[e] + mapped[map_start[tail] + x]]
            col = net.col_class[net.col_start[e] + mapped[map_start[head] + x]]
            cell = net.table_start[e] + row * net.col_count[e] + col
            total[starts[root[tail]] + x] += net.table[cell]
    return total
