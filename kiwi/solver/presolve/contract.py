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

from kiwi.solver.network import Network, add_line, widest
from kiwi.solver.presolve.propagate import propagate
from kiwi.solver.presolve.rebuild import rebuild
from kiwi.solver.presolve.reduction import Maps, Reduction


def contract(net: Network) -> Reduction:
    """One pass of merging; apply again while it merges anything."""
    cost = propagate(net)
    alive = np.add.reduceat(np.isfinite(cost), net.option_start[:-1])
    if (alive == 0).any():
        return Reduction.nothing(net, infeasible=True)
    parent, start, option = _decide(net, cost, alive)
    if (parent < 0).all() and np.isfinite(cost).all():
        return Reduction.nothing(net)
    maps = _resolve(net.option_start, cost, parent, start, option)
    kept = parent < 0
    maps = maps._replace(root=(np.cumsum(kept) - 1)[maps.root])
    return rebuild(net, cost, maps, np.diff(net.option_start)[kept])


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
def _resolve(option_start, cost, parent, start, option):
    """For each node the root of its chain of parents, and for each option of the root its own."""
    count, order = len(parent), _roots_first(parent)
    root = np.arange(count)
    for i in order:
        if parent[i] >= 0:
            root[i] = root[parent[i]]
    map_start = np.zeros(count + 1, dtype=np.int64)
    map_start[1:] = np.cumsum(option_start[root + 1] - option_start[root])
    mapped = np.full(map_start[count], -1, dtype=np.int64)
    for i in order:
        first = option_start[root[i]]
        for o in range(option_start[root[i] + 1] - first):
            if parent[i] < 0:
                mapped[map_start[i] + o] = o if cost[first + o] < np.inf else -1
            else:
                above = mapped[map_start[parent[i]] + o]
                mapped[map_start[i] + o] = -1 if above < 0 else option[start[i] + above]
    return Maps(root, map_start, mapped)


@numba.njit(cache=True)
def _decide(net, cost, alive):
    """The parent of each merged node, -1 for others; from `start[i]`, for each option of the
    parent the option of i that it leaves (-1 where none)."""
    count = len(alive)
    parent = np.full(count, -1, dtype=np.int64)
    end_of = np.full(count, -1, dtype=np.int64)
    top = np.arange(count)
    base = -1
    for i in range(count):
        if alive[i] == 1:
            if base < 0:
                base = i
            else:
                parent[i], top[i] = base, base
    pick, values = np.empty(widest(net), dtype=np.int64), np.empty(widest(net))
    for i in range(count):
        if alive[i] == 1:
            continue
        for near in range(net.near_start[i], net.near_start[i + 1]):
            h = net.near_end[near]
            j = net.end_node[h ^ 1]
            if alive[j] > 1 and _find(top, j) != i and _decides(net, cost, h, pick, values):
                parent[i], end_of[i], top[i] = j, h, j
                break
    start = np.zeros(count + 1, dtype=np.int64)
    for i in range(count):
        j = parent[i]
        size = 0 if j < 0 else net.option_start[j + 1] - net.option_start[j]
        start[i + 1] = start[i] + size
    option = np.full(start[count], -1, dtype=np.int64)
    for i in range(count):
        if parent[i] >= 0:
            out = option[start[i] : start[i + 1]]
            _write_map(net, cost, i, parent[i], end_of[i], pick, values, out)
    return parent, start, option


@numba.njit(cache=True)
def _find(top, i):
    while top[i] != i:
        top[i] = top[top[i]]
        i = top[i]
    return i


@numba.njit(cache=True)
def _write_map(net, cost, i, j, h, pick, values, out):
    only = 0
    if h >= 0:
        _decides(net, cost, h, pick, values)
    else:  # merged into the base: its only option
        while cost[net.option_start[i] + only] == np.inf:
            only += 1
    for o in range(len(out)):
        if cost[net.option_start[j] + o] < np.inf:
            out[o] = only if h < 0 else pick[net.line[net.line_start[h ^ 1] + o]]


@numba.njit(cache=True)
def _decides(net, cost, h, pick, values):
    """True where the node at the other end decides that at h; `pick` maps its lines to options."""
    pick[: net.line_count[h ^ 1]] = -2
    first, start = net.option_start[net.end_node[h ^ 1]], net.line_start[h ^ 1]
    for o in range(net.line_start[(h ^ 1) + 1] - start):
        line = net.line[start + o]
        if cost[first + o] < np.inf and pick[line] == -2:
            pick[line] = _only_option(net, cost, h, o, values)
            if pick[line] < 0:
                return False
    return True


@numba.njit(cache=True)
def _only_option(net, cost, h, theirs, scratch):
    """The one option of the node at h worth taking with one of its neighbour, or -1."""
    i = net.end_node[h]
    first, last = net.option_start[i], net.option_start[i + 1]
    values = scratch[: last - first]
    values[:] = cost[first:last]
    add_line(net, h, theirs, values)
    best, found = -1, 0
    for o in range(len(values)):
        if values[o] < np.inf:
            found += 1
            if best < 0 or values[o] < values[best]:
                best = o
    if found <= 1:
        return best
    if net.near_start[i + 1] - net.near_start[i] > 1:
        return -1
    for o in range(len(values)):
        other = values[o] < np.inf and o != best
        if other and not _holds_no_more(net, first + best, first + o):
            return -1
    return best


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
