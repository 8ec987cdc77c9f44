"""Nodes that a neighbour decides are merged into it.

Node i is decided by its neighbour j over edge e when each option of j leaves exactly one option of
i that can be part of a best solution: (a) only one has a finite cost with it, or (b) i has no other
neighbour, and one option is cheapest with it and holds no more memory than any other. Then i's
costs and intervals go to the options of j, its edges go on to j, and i disappears. Chains of
operators whose shardings must agree vanish this way, with their leaves. Nodes with a single
option are merged into one *base* node, and their edges into the costs of their neighbours.
"""

import numba
import numpy as np

from kiwi.solver.network import Network
from kiwi.solver.presolve.propagate import propagate
from kiwi.solver.presolve.rebuild import rebuild
from kiwi.solver.presolve.reduction import Reduction


def contract(net: Network) -> Reduction:
    """One pass of merging; apply again while it merges anything."""
    cost = propagate(net)
    alive = np.add.reduceat(np.isfinite(cost), net.option_start[:-1])
    if (alive == 0).any():
        return Reduction.nothing(net, infeasible=True)
    parent, start, option = _decide(net, cost, alive)
    if (parent < 0).all() and np.isfinite(cost).all():
        return Reduction.nothing(net)
    order = _roots_first(parent)
    return rebuild(net, cost, parent, start, option, order)


@numba.njit(cache=True)
def _roots_first(parent):
    """All nodes, every one after its parent."""
    count = len(parent)
    order = np.empty(count, dtype=np.int64)
    placed = np.zeros(count, dtype=np.bool_)
    chain = np.empty(count, dtype=np.int64)
    filled = 0
    for i in range(count):
        depth, x = 0, i
        while x >= 0 and not placed[x]:
            chain[depth] = x
            depth += 1
            x = parent[x]
        for k in range(depth - 1, -1, -1):
            order[filled] = chain[k]
            placed[chain[k]] = True
            filled += 1
    return order


@numba.njit(cache=True)
def _decide(net, cost, alive):
    """The parent of each merged node, -1 for others; from `start[i]`, for each option of the
    parent the option of i that it leaves (-1 where none)."""
    count = len(alive)
    parent = np.full(count, -1, dtype=np.int64)
    edge_of = np.full(count, -1, dtype=np.int64)
    top = np.arange(count)
    base = -1
    for i in range(count):
        if alive[i] == 1:
            if base < 0:
                base = i
            else:
                parent[i], top[i] = base, base
    pick = np.empty(_widest(net), dtype=np.int64)
    for i in range(count):
        if alive[i] == 1:
            continue
        for near in range(net.near_start[i], net.near_start[i + 1]):
            e = net.near_edge[near]
            j = net.head[e] if net.tail[e] == i else net.tail[e]
            if alive[j] > 1 and _find(top, j) != i and _decides(net, cost, e, i, j, pick):
                parent[i], edge_of[i], top[i] = j, e, j
                break
    start = np.zeros(count + 1, dtype=np.int64)
    for i in range(count):
        j = parent[i]
        size = 0 if j < 0 else net.option_start[j + 1] - net.option_start[j]
        start[i + 1] = start[i] + size
    option = np.full(start[count], -1, dtype=np.int64)
    for i in range(count):
        if parent[i] >= 0:
            _write_map(net, cost, i, parent[i], edge_of[i], pick, option[start[i] : start[i + 1]])
    return parent, start, option


@numba.njit(cache=True)
def _widest(net):
    widest = 1
    for i in range(len(net.option_start) - 1):
        widest = max(widest, net.option_start[i + 1] - net.option_start[i])
    return widest


@numba.njit(cache=True)
def _find(top, i):
    while top[i] != i:
        top[i] = top[top[i]]
        i = top[i]
    return i


@numba.njit(cache=True)
def _write_map(net, cost, i, j, e, pick, out):
    first = net.option_start[j]
    if e < 0:  # merged into the base: its only option
        only = 0
        while cost[net.option_start[i] + only] == np.inf:
            only += 1
        for o in range(len(out)):
            out[o] = only if cost[first + o] < np.inf else -1
        return
    _decides(net, cost, e, i, j, pick)
    start = net.row_start[e] if net.tail[e] == j else net.col_start[e]
    classes = net.row_class if net.tail[e] == j else net.col_class
    for o in range(len(out)):
        out[o] = pick[classes[start + o]] if cost[first + o] < np.inf else -1


@numba.njit(cache=True)
def _decides(net, cost, e, i, j, pick):
    """True where j decides i; `pick` maps the lines of j to options of i."""
    is_leaf = net.near_start[i + 1] - net.near_start[i] == 1
    j_is_tail = net.tail[e] == j
    line_count = net.row_count[e] if j_is_tail else net.col_count[e]
    start = net.row_start[e] if j_is_tail else net.col_start[e]
    classes = net.row_class if j_is_tail else net.col_class
    pick[:line_count] = -2
    first = net.option_start[j]
    for o in range(net.option_start[j + 1] - first):
        line = classes[start + o]
        if cost[first + o] < np.inf and pick[line] == -2:
            pick[line] = _only_option(net, cost, e, i, line, j_is_tail, is_leaf)
            if pick[line] < 0:
                return False
    return True


@numba.njit(cache=True)
def _only_option(net, cost, e, i, line, j_is_tail, is_leaf):
    """The one option of i worth taking with a line of its neighbour, or -1."""
    first, base, cols = net.option_start[i], net.table_start[e], net.col_count[e]
    best, best_cost, found = -1, np.inf, 0
    for o in range(net.option_start[i + 1] - first):
        value = _with_line(net, cost, e, first, o, base, cols, line, j_is_tail)
        if value < np.inf:
            found += 1
            if value < best_cost:
                best, best_cost = o, value
    if found <= 1:
        return best
    if not is_leaf:
        return -1
    for o in range(net.option_start[i + 1] - first):
        value = _with_line(net, cost, e, first, o, base, cols, line, j_is_tail)
        if value < np.inf and o != best and not _holds_no_more(net, first + best, first + o):
            return -1
    return best


@numba.njit(cache=True)
def _with_line(net, cost, e, first, o, base, cols, line, j_is_tail):
    if j_is_tail:
        cell = base + line * cols + net.col_class[net.col_start[e] + o]
    else:
        cell = base + net.row_class[net.row_start[e] + o] * cols + line
    return cost[first + o] + net.table[cell]


@numba.njit(cache=True)
def _holds_no_more(net, mine, other):
    """Sufficient: the k-th interval of `mine` lies within the k-th of `other`, with no more."""
    count = net.use_start[mine + 1] - net.use_start[mine]
    if count > net.use_start[other + 1] - net.use_start[other]:
        return False
    for k in range(count):
        a, b = net.use_start[mine] + k, net.use_start[other] + k
        if (
            net.use_begin[a] < net.use_begin[b]
            or net.use_end[a] > net.use_end[b]
            or net.use_bytes[a] > net.use_bytes[b]
        ):
            return False
    return True
