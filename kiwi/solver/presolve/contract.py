"""Nodes that a neighbour decides are merged into it.

Node i is decided by its neighbour j over edge e when each option of j leaves exactly one option of
i that can be part of a best solution: (a) only one has a finite cost with it, or (b) i has no other
neighbour, and one option is cheapest with it and holds no more memory than any other. Then i's
costs and intervals go to the options of j, its edges go on to j, and i disappears. Chains of
operators whose shardings must agree vanish this way, with their leaves. Nodes with a single
option are merged into one *base* node, and their edges into the costs of their neighbours.
"""

import numpy as np

from kiwi.solver.compiled import inlined, kernel, stable_order
from kiwi.solver.edge_tables import offsets
from kiwi.solver.network import Network, add_line, widest
from kiwi.solver.presolve.dominate import propagate
from kiwi.solver.presolve.rebuild import rebuild
from kiwi.solver.presolve.reduction import Maps, Reduction


def contract(net: Network) -> Reduction:
    """One pass of merging; apply again while it merges anything."""
    cost = propagate(net)
    alive = np.add.reduceat(np.isfinite(cost), net.option_start[:-1])
    if (alive == 0).any():
        return Reduction.nothing(net, infeasible=True)
    pick_start = offsets(net.line_count)
    parent, end, picks = _decide(net, cost, alive, pick_start)
    if (parent < 0).all() and np.isfinite(cost).all():
        return Reduction.nothing(net)
    root, start, option = _resolve(net, cost, parent, end, picks, pick_start)
    kept = parent < 0
    maps = Maps((np.cumsum(kept) - 1)[root], start, option)
    return rebuild(net, cost, maps, np.diff(net.option_start)[kept])


@inlined
def _roots_first(parent):
    """All nodes, every one after its parent."""
    depth = np.zeros(len(parent), dtype=np.int64)
    for i in range(len(parent)):
        above = parent[i]
        while above >= 0:
            depth[i] += 1
            above = parent[above]
    return stable_order(depth)


@kernel
def _resolve(net, cost, parent, end, picks, pick_start):
    """For each node the root of its chain of parents, and for each option of the root its own."""
    count, order, starts = len(parent), _roots_first(parent), net.option_start
    root = np.arange(count)
    for i in order:
        if parent[i] >= 0:
            root[i] = root[parent[i]]
    map_start = np.zeros(count + 1, dtype=np.int64)
    for i in range(count):
        map_start[i + 1] = map_start[i] + starts[root[i] + 1] - starts[root[i]]
    mapped = np.empty(map_start[count], dtype=np.int64)
    for i in order:
        mine, above, o = mapped[map_start[i] : map_start[i + 1]], parent[i], end[i] ^ 1
        if above < 0:
            for x in range(len(mine)):
                mine[x] = x if cost[starts[i] + x] < np.inf else -1
            continue
        only = 0
        while cost[starts[i] + only] == np.inf and only + 1 < starts[i + 1] - starts[i]:
            only += 1
        for x in range(len(mine)):
            mine[x] = mapped[map_start[above] + x]
            if mine[x] >= 0 and end[i] < 0:  # merged into the base: its only option
                mine[x] = only
            elif mine[x] >= 0:
                mine[x] = picks[pick_start[o] + net.line[net.line_start[o] + mine[x]]]
    return root, map_start, mapped


@kernel
def _decide(net, cost, alive, pick_start):
    """The parent of each merged node, and the node's end of the edge to it, -1 for others; from
    `pick_start[h ^ 1]`, for each line of the parent the option that it leaves of the node at h."""
    count, base = len(alive), -1
    parent, end = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    top = np.arange(count)
    for i in range(count):
        if alive[i] == 1:
            if base < 0:
                base = i
            else:
                parent[i], top[i] = base, base
    picks, values = np.empty(pick_start[-1], dtype=np.int64), np.empty(widest(net))
    for i in range(count):
        if alive[i] == 1:
            continue
        for near in range(net.near_start[i], net.near_start[i + 1]):
            h = net.near_end[near]
            j, pick = net.end_node[h ^ 1], picks[pick_start[h ^ 1] : pick_start[(h ^ 1) + 1]]
            if alive[j] > 1 and _find(top, j) != i and _decides(net, cost, h, pick, values):
                parent[i], end[i], top[i] = j, h, j
                break
    return parent, end, picks


@inlined
def _find(top, i):
    while top[i] != i:
        top[i] = top[top[i]]
        i = top[i]
    return i


@inlined
def _decides(net, cost, h, pick, values):
    """True where the node at the other end decides that at h; `pick` maps its lines to options."""
    pick[:] = -2
    first, start = net.option_start[net.end_node[h ^ 1]], net.line_start[h ^ 1]
    for o in range(net.line_start[(h ^ 1) + 1] - start):
        line = net.line[start + o]
        if cost[first + o] < np.inf and pick[line] == -2:
            pick[line] = _only_option(net, cost, h, o, values)
            if pick[line] < 0:
                return False
    return True


@inlined
def _only_option(net, cost, h, theirs, scratch):
    """The one option of the node at h worth taking with one of its neighbour, or -1."""
    i = net.end_node[h]
    first, last = net.option_start[i], net.option_start[i + 1]
    values = scratch[: last - first]
    for o in range(len(values)):
        values[o] = cost[first + o]
    add_line(net, h, theirs, values)
    best, count = -1, 0
    for o in range(len(values)):
        if values[o] < np.inf:
            count += 1
            if best < 0 or values[o] < values[best]:
                best = o
    if count <= 1:
        return best
    if net.near_start[i + 1] - net.near_start[i] > 1:
        return -1
    for o in range(len(values)):
        other = values[o] < np.inf and o != best
        if other and not _holds_no_more(net, first + best, first + o):
            return -1
    return best


@inlined
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
