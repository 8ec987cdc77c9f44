"""Exact re-optimisation of an induced tree of nodes while all others stay: one large move.

From a centre the tree grows breadth first: a node joins when exactly one of its neighbours is in
the tree already, so the subgraph that the tree's nodes induce has no cycle and dynamic programming
is exact on it (tree-sampling moves: Hamze and de Freitas, *From Fields to Trees*, UAI 2004). One
such move changes hundreds of nodes together, which single exchanges cannot where pairs of
options are forbidden.
"""

from typing import NamedTuple

import numba
import numpy as np

from kiwi.solver.network import Network


class Workspace(NamedTuple):
    """Scratch arrays, allocated once: per node, per option, and per line of an edge's table."""

    members: np.ndarray
    parent_edge: np.ndarray
    inside: np.ndarray
    touched: np.ndarray
    cost: np.ndarray
    tail_pick: np.ndarray
    head_pick: np.ndarray
    class_cost: np.ndarray
    class_pick: np.ndarray
    old_choice: np.ndarray
    frozen: np.ndarray


def new_workspace(net: Network) -> Workspace:
    """Scratch space for `net`."""
    nodes, widest = net.node_count, int(np.diff(net.option_start).max(initial=1))
    return Workspace(
        members=np.zeros(nodes, dtype=np.int64),
        parent_edge=np.full(nodes, -1, dtype=np.int64),
        inside=np.zeros(nodes, dtype=np.bool_),
        touched=np.zeros(nodes, dtype=np.int64),
        cost=np.zeros(net.option_count),
        tail_pick=np.zeros(int(net.row_start[-1]), dtype=np.int64),
        head_pick=np.zeros(int(net.col_start[-1]), dtype=np.int64),
        class_cost=np.zeros(widest),
        class_pick=np.zeros(widest, dtype=np.int64),
        old_choice=np.zeros(nodes, dtype=np.int64),
        frozen=np.zeros(nodes, dtype=np.bool_),
    )


@numba.njit(cache=True)
def _other(net, e, i):
    return net.head[e] if net.tail[e] == i else net.tail[e]


@numba.njit(cache=True)
def _join(net, work, i, count):
    work.members[count] = i
    work.inside[i] = True
    for near in range(net.near_start[i], net.near_start[i + 1]):
        work.touched[_other(net, net.near_edge[near], i)] += 1


@numba.njit(cache=True)
def grow_tree(net: Network, work: Workspace, centre, most):
    """Fills `members` with an induced tree around `centre`; returns its size."""
    work.parent_edge[centre] = -1
    _join(net, work, centre, 0)
    count, next_member = 1, 0
    while next_member < count and count < most:
        i = work.members[next_member]
        next_member += 1
        first, last = net.near_start[i], net.near_start[i + 1]
        offset = np.random.randint(0, max(1, last - first))
        for step in range(last - first):
            e = net.near_edge[first + (step + offset) % (last - first)]
            j = _other(net, e, i)
            if not work.inside[j] and work.touched[j] == 1:
                work.parent_edge[j] = e
                _join(net, work, j, count)
                count += 1
                if count == most:
                    break
    return count


@numba.njit(cache=True)
def grow_forest(net: Network, work: Workspace, order, most):
    """Fills `members` with trees grown from the nodes in `order` until none can join, or `most`
    have. Nodes marked as `frozen` stay out."""
    total = 0
    for centre in order:
        if total >= most:
            break
        if work.inside[centre] or work.touched[centre] > 0 or work.frozen[centre]:
            continue
        start = total
        work.parent_edge[centre] = -1
        _join(net, work, centre, total)
        total += 1
        while start < total and total < most:
            i = work.members[start]
            start += 1
            for near in range(net.near_start[i], net.near_start[i + 1]):
                e = net.near_edge[near]
                j = _other(net, e, i)
                free = not work.inside[j] and not work.frozen[j]
                if free and work.touched[j] == 1 and total < most:
                    work.parent_edge[j] = e
                    _join(net, work, j, total)
                    total += 1
    return total


@numba.njit(cache=True)
def release(net: Network, work: Workspace, count):
    """Empties the tree."""
    for k in range(count):
        i = work.members[k]
        work.inside[i] = False
        for near in range(net.near_start[i], net.near_start[i + 1]):
            work.touched[_other(net, net.near_edge[near], i)] = 0


@numba.njit(cache=True)
def optimise_tree(net: Network, work: Workspace, table, unary, choice, count):
    """Sets `choice` of the tree's nodes to an optimum given all others; keeps the old in
    `old_choice`. Returns the change of the cost (never positive beyond rounding)."""
    before = 0.0
    for k in range(count):
        before += _condition(net, work, table, unary, choice, work.members[k])
    for k in range(count - 1, 0, -1):
        i = work.members[k]
        if work.parent_edge[i] >= 0:
            _send_up(net, work, table, i)
    after = 0.0
    for k in range(count):
        i = work.members[k]
        work.old_choice[i] = choice[i]
        after += _decide(net, work, choice, i)
    return after - before


@numba.njit(cache=True)
def _condition(net, work, table, unary, choice, i):
    """Cost of each option of i with its neighbours outside fixed; returns the current cost of
    the node, those edges and the edge to its parent."""
    first, size = net.option_start[i], net.option_start[i + 1] - net.option_start[i]
    cost = work.cost[first : first + size]
    cost[:] = unary[first : first + size]
    parent_cost = 0.0
    for near in range(net.near_start[i], net.near_start[i + 1]):
        e = net.near_edge[near]
        base, cols = net.table_start[e], net.col_count[e]
        if net.tail[e] == i:
            j = net.head[e]
            col = net.col_class[net.col_start[e] + choice[j]]
            start = net.row_start[e]
            if not work.inside[j]:
                for o in range(size):
                    cost[o] += table[base + net.row_class[start + o] * cols + col]
            elif e == work.parent_edge[i]:
                parent_cost = table[base + net.row_class[start + choice[i]] * cols + col]
        else:
            j = net.tail[e]
            line = base + net.row_class[net.row_start[e] + choice[j]] * cols
            start = net.col_start[e]
            if not work.inside[j]:
                for o in range(size):
                    cost[o] += table[line + net.col_class[start + o]]
            elif e == work.parent_edge[i]:
                parent_cost = table[line + net.col_class[start + choice[i]]]
    return cost[choice[i]] + parent_cost


@numba.njit(cache=True)
def _best_of_classes(work, cost, classes, class_count):
    work.class_cost[:class_count] = np.inf
    for o in range(len(cost)):
        c = classes[o]
        if cost[o] < work.class_cost[c]:
            work.class_cost[c] = cost[o]
            work.class_pick[c] = o


@numba.njit(cache=True)
def _send_up(net, work, table, i):
    """Adds to the parent's options the least cost of the subtree of i, and notes the choices."""
    e = work.parent_edge[i]
    base, rows, cols = net.table_start[e], net.row_count[e], net.col_count[e]
    cost = work.cost[net.option_start[i] : net.option_start[i + 1]]
    is_tail = net.tail[e] == i
    j = net.head[e] if is_tail else net.tail[e]
    if is_tail:
        mine = net.row_class[net.row_start[e] : net.row_start[e + 1]]
        theirs = net.col_class[net.col_start[e] : net.col_start[e + 1]]
        pick, lines, columns = work.head_pick[net.col_start[e] :], rows, cols
    else:
        mine = net.col_class[net.col_start[e] : net.col_start[e + 1]]
        theirs = net.row_class[net.row_start[e] : net.row_start[e + 1]]
        pick, lines, columns = work.tail_pick[net.row_start[e] :], cols, rows
    _best_of_classes(work, cost, mine, lines)
    least = np.empty(columns)
    for b in range(columns):
        best, argument = np.inf, 0
        for a in range(lines):
            cell = base + a * cols + b if is_tail else base + b * cols + a
            value = work.class_cost[a] + table[cell]
            if value < best:
                best, argument = value, a
        least[b] = best
        pick[b] = work.class_pick[argument]
    above = work.cost[net.option_start[j] : net.option_start[j + 1]]
    for o in range(len(above)):
        above[o] += least[theirs[o]]


@numba.njit(cache=True)
def _decide(net, work, choice, i):
    """Fixes i, its parent being fixed; returns the cost of the tree where i is a root."""
    e = work.parent_edge[i]
    if e >= 0:
        if net.tail[e] == i:
            c = net.col_class[net.col_start[e] + choice[net.head[e]]]
            choice[i] = work.head_pick[net.col_start[e] + c]
        else:
            c = net.row_class[net.row_start[e] + choice[net.tail[e]]]
            choice[i] = work.tail_pick[net.row_start[e] + c]
        return 0.0
    cost = work.cost[net.option_start[i] : net.option_start[i + 1]]
    best = choice[i]  # ties keep the present choice
    for o in range(len(cost)):
        if cost[o] < cost[best]:
            best = o
    choice[i] = best
    return cost[best]
