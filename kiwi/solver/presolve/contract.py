"""Merges nodes into a neighbour that decides them.

A neighbour j decides node i over their edge if each option of j leaves exactly one option of i that
can be part of a best solution: (a) only one option of i has a finite cost with it; or (b) i has no
other neighbour, and one option of i is cheapest with it and holds no more memory than any other.
The costs and intervals of i are then added to the options of j, the edges of i are moved to j, and
i disappears. Chains of operators whose shardings must agree vanish this way, and so do their
leaves. Nodes with a single option are merged into one *base* node, and their edges into the costs
of their neighbours.
"""

import numpy as np

from kiwi.solver.compiled import inlined, kernel, stable_order
from kiwi.solver.edge_tables import offsets
from kiwi.solver.network import Network, add_line, widest
from kiwi.solver.presolve.dominate import propagate
from kiwi.solver.presolve.rebuild import rebuild
from kiwi.solver.presolve.reduction import Maps, Reduction


def contract(net: Network) -> Reduction:
    """Returns the reduction by one pass of merging. Further passes may merge more nodes."""
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
    """Returns all nodes in an order in which each comes after its parent."""
    depth = np.zeros(len(parent), dtype=np.int64)
    for i in range(len(parent)):
        above = parent[i]
        while above >= 0:
            depth[i] += 1
            above = parent[above]
    return stable_order(depth)


@kernel
def _resolve(net, cost, parent, end, picks, pick_start):
    """Returns, for each node, the root of its chain of parents, and its option for each option of
    the root, as starts and a flat array. An option is -1 if the root's option is ruled out."""
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
        options, above, o = mapped[map_start[i] : map_start[i + 1]], parent[i], end[i] ^ 1
        if above < 0:
            for x in range(len(options)):
                options[x] = x if cost[starts[i] + x] < np.inf else -1
            continue
        only = 0
        while cost[starts[i] + only] == np.inf and only + 1 < starts[i + 1] - starts[i]:
            only += 1
        for x in range(len(options)):
            options[x] = mapped[map_start[above] + x]
            if options[x] >= 0 and end[i] < 0:  # A node merged into the base takes its only option.
                options[x] = only
            elif options[x] >= 0:
                options[x] = picks[pick_start[o] + net.line[net.line_start[o] + options[x]]]
    return root, map_start, mapped


@kernel
def _decide(net, cost, alive, pick_start):
    """Chooses the nodes to merge.

    Returns three arrays: the parent of each merged node (-1 for other nodes); the end h of the edge
    to the parent at which the node lies (-1 without a parent); and, from `pick_start[h ^ 1]` on,
    the option of the node that each line of the parent leaves.
    """
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
    """Returns whether the node at the other end decides the node at end h. Fills `pick` with the
    option that each line of the other end leaves."""
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
    """Returns the only option of the node at end h that is worth taking with option `theirs` of its
    neighbour, or -1."""
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
        is_rival = values[o] < np.inf and o != best
        if is_rival and not _holds_no_more(net, first + best, first + o):
            return -1
    return best


@inlined
def _holds_no_more(net, mine, other):
    """Whether the k-th interval of option `mine` lies within the k-th of `other` and has no more
    bytes. This suffices for option `mine` to hold no more memory at any time."""
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
