"""Exact re-optimisation of an induced tree of nodes while all others stay: one large move.

From a centre the tree grows breadth first: a node joins when exactly one of its neighbours is in
the tree already, so the subgraph that the tree's nodes induce has no cycle and dynamic programming
is exact on it (tree-sampling moves: Hamze and de Freitas, *From Fields to Trees*, UAI 2004). One
such move changes hundreds of nodes together, which single exchanges cannot where pairs of
options are forbidden.
"""

from dataclasses import dataclass

import numpy as np

from kiwi.solver.compiled import inlined, inner, kernel
from kiwi.solver.loops.arrays import Arrays
from kiwi.solver.network import Network, add_line, cell, widest


@dataclass(frozen=True, eq=False)
class Workspace(Arrays):
    """Scratch arrays, allocated once: per node, per option, and per line of an edge's table.

    `visited` (1): how many options and table cells all trees so far have gone over.
    `parent_end`: a member's own end of the edge to its parent, -1 at roots.
    """

    members: np.ndarray
    parent_end: np.ndarray
    inside: np.ndarray
    touched: np.ndarray
    cost: np.ndarray
    pick: np.ndarray
    class_cost: np.ndarray
    class_pick: np.ndarray
    old_choice: np.ndarray
    frozen: np.ndarray
    visited: np.ndarray


def new_workspace(net: Network) -> Workspace:
    """Scratch space for `net`."""
    nodes, most = net.node_count, widest(net)
    return Workspace(
        members=np.zeros(nodes, dtype=np.int64),
        parent_end=np.full(nodes, -1, dtype=np.int64),
        inside=np.zeros(nodes, dtype=np.bool_),
        touched=np.zeros(nodes, dtype=np.int64),
        cost=np.zeros(net.option_count),
        pick=np.zeros(len(net.line), dtype=np.int64),
        class_cost=np.zeros(most),
        class_pick=np.zeros(most, dtype=np.int64),
        old_choice=np.zeros(nodes, dtype=np.int64),
        frozen=np.zeros(nodes, dtype=np.bool_),
        visited=np.zeros(1, dtype=np.int64),
    )


@inner
def _join(net, work, i, end, count):
    """Makes i the next member, by its own end of the edge to its parent; returns their number."""
    work.members[count] = i
    work.parent_end[i] = end
    work.inside[i] = True
    for near in range(net.near_start[i], net.near_start[i + 1]):
        work.touched[net.end_node[net.near_end[near] ^ 1]] += 1
    return count + 1


@inner
def _grow(net, work, centre, count, most, at_random):
    """Adds a tree around `centre` to the `count` members, up to `most`; returns their number.
    Nodes marked as `frozen` stay out. Neighbours join in their order, or from a random one on."""
    grown = count
    count = _join(net, work, centre, np.int64(-1), count)
    while grown < count and count < most:
        i = work.members[grown]
        grown += 1
        first, last = net.near_start[i], net.near_start[i + 1]
        near = first + (np.random.randint(0, max(1, last - first)) if at_random else 0)
        for _ in range(last - first):
            h = net.near_end[near]
            j = net.end_node[h ^ 1]
            free = not work.inside[j] and not work.frozen[j]
            if free and work.touched[j] == 1 and count < most:
                count = _join(net, work, j, h ^ 1, count)
            near = near + 1 if near + 1 < last else first
    return count


@inlined
def grow_tree(net: Network, work: Workspace, centre, most):
    """Fills `members` with an induced tree around `centre`; returns its size."""
    return _grow(net, work, centre, np.int64(0), most, np.bool_(True))


@kernel
def grow_forest(net: Network, work: Workspace, order, most):
    """Fills `members` with trees grown from the nodes in `order` until none can join, or `most`
    have; returns how many did. Nodes marked as `frozen` stay out."""
    count, at_random = np.int64(0), np.bool_(False)
    for centre in order:
        taken = work.inside[centre] or work.touched[centre] > 0 or work.frozen[centre]
        if count < most and not taken:
            count = _grow(net, work, centre, count, most, at_random)
    return count


@kernel
def release(net: Network, work: Workspace, count):
    """Empties the tree."""
    for k in range(count):
        i = work.members[k]
        work.inside[i] = False
        for near in range(net.near_start[i], net.near_start[i + 1]):
            work.touched[net.end_node[net.near_end[near] ^ 1]] = 0


@kernel
def optimise_tree(net: Network, work: Workspace, unary, choice, count):
    """Sets `choice` of the tree's nodes to an optimum given all others; keeps the old in
    `old_choice`. Returns the change of the cost (never positive beyond rounding)."""
    before = 0.0
    for k in range(count):
        before += _condition(net, work, unary, choice, work.members[k])
    for k in range(count - 1, 0, -1):
        if work.parent_end[work.members[k]] >= 0:
            _send_up(net, work, work.members[k])
    after = 0.0
    for k in range(count):
        i = work.members[k]
        work.old_choice[i] = choice[i]
        after += _decide(net, work, choice, i)
    return after - before


@inlined
def _condition(net, work, unary, choice, i):
    """Cost of each option of i with its neighbours outside fixed; returns the current cost of
    the node, those edges and the edge to its parent."""
    first, last = net.option_start[i], net.option_start[i + 1]
    cost, parent_cost = work.cost[first:last], 0.0
    for o in range(len(cost)):
        cost[o] = unary[first + o]
    work.visited[0] += (last - first) * (1 + net.near_start[i + 1] - net.near_start[i])
    for near in range(net.near_start[i], net.near_start[i + 1]):
        h = net.near_end[near]
        j = net.end_node[h ^ 1]
        if not work.inside[j]:
            add_line(net, h, choice[j], cost)
        elif h == work.parent_end[i]:
            parent_cost = net.table[cell(net, h, choice[i], choice[j])]
    return cost[choice[i]] + parent_cost


@inlined
def _send_up(net, work, i):
    """Adds to the parent's options the least cost of the subtree of i, and notes the choices."""
    h = work.parent_end[i]
    o, base, lines = h ^ 1, net.table_start[h >> 1], net.line_count[h]
    first, start, step, across = net.option_start[i], net.line_start[h], net.step[h], net.step[o]
    work.class_cost[:lines] = np.inf
    for x in range(net.option_start[i + 1] - first):
        c = net.line[start + x]
        if work.cost[first + x] < work.class_cost[c]:
            work.class_cost[c], work.class_pick[c] = work.cost[first + x], x
    least = np.empty(net.line_count[o])
    work.visited[0] += lines * len(least)
    for b in range(len(least)):
        best, argument = np.inf, 0
        for a in range(lines):
            value = work.class_cost[a] + net.table[base + a * step + b * across]
            if value < best:
                best, argument = value, a
        least[b] = best
        work.pick[net.line_start[o] + b] = work.class_pick[argument]
    first, start = net.option_start[net.end_node[o]], net.line_start[o]
    for x in range(net.line_start[o + 1] - start):
        work.cost[first + x] += least[net.line[start + x]]


@inlined
def _decide(net, work, choice, i):
    """Fixes i, its parent being fixed; returns the cost of the tree where i is a root."""
    if work.parent_end[i] >= 0:
        o = work.parent_end[i] ^ 1
        line = net.line[net.line_start[o] + choice[net.end_node[o]]]
        choice[i] = work.pick[net.line_start[o] + line]
        return 0.0
    cost = work.cost[net.option_start[i] : net.option_start[i + 1]]
    best = choice[i]  # ties keep the present choice
    for o in range(len(cost)):
        if cost[o] < cost[best]:
            best = o
    choice[i] = best
    return cost[best]
