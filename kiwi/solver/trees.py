"""Exact re-optimisation of an induced tree of nodes while all other nodes stay.

A tree grows breadth first from a centre. A node joins it if exactly one of its neighbours is in the
tree. The subgraph that the tree's nodes induce then has no cycle, and dynamic programming is exact
on it (tree-sampling moves: Hamze and de Freitas, *From Fields to Trees*, UAI 2004). One such move
changes hundreds of nodes together. Exchanges of single nodes cannot, because forbidden pairs lie
between.
"""

from dataclasses import dataclass

import numpy as np

from kiwi.solver.compiled import inlined, inner, kernel
from kiwi.solver.loops.arrays import Arrays
from kiwi.solver.network import Network, add_line, cell, widest


@dataclass(frozen=True, eq=False)
class Workspace(Arrays):
    """Scratch arrays, allocated once. The tree's nodes are its members.

    - `members` (n): the members, in the order in which they joined.
    - `parent_end` (n): for each member, its end of the edge to its parent; -1 for roots.
    - `inside` (n): whether a node is a member. `touched` (n): the number of its member neighbours.
    - `cost` (K): for members, the costs of their options with the best choices below them.
    - `pick`: for each line at the end of an edge, the best option of the child at the other end.
    - `class_cost`, `class_pick`: by line of one table, the least cost and its option.
    - `old_choice` (n): the choice before the last optimisation.
    - `frozen` (n): whether a node must not join.
    - `visited` (1): the number of options and table cells that all trees so far have visited.
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
    """Returns the scratch arrays for `net`."""
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
    """Makes node i the next member of the tree, and returns the number of members. `end`: the end
    at node i of the edge to its parent; -1 for the root."""
    work.members[count] = i
    work.parent_end[i] = end
    work.inside[i] = True
    for near in range(net.near_start[i], net.near_start[i + 1]):
        work.touched[net.end_node[net.near_end[near] ^ 1]] += 1
    return count + 1


@inner
def _grow(net, work, centre, count, most, at_random):
    """Adds a tree around `centre` to the `count` members, up to `most`. Returns the number of
    members.

    Neighbours of a node join in their order, which begins at a random one if `at_random`.
    """
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
    """Fills `members` with an induced tree of up to `most` nodes around `centre`. Returns its
    size."""
    return _grow(net, work, centre, np.int64(0), most, np.bool_(True))


@kernel
def grow_forest(net: Network, work: Workspace, order, most):
    """Fills `members` with an induced forest, which is grown from the nodes in `order` until no
    node can join or `most` have. Returns the number of members."""
    count, at_random = np.int64(0), np.bool_(False)
    for centre in order:
        taken = work.inside[centre] or work.touched[centre] > 0 or work.frozen[centre]
        if count < most and not taken:
            count = _grow(net, work, centre, count, most, at_random)
    return count


@kernel
def release(net: Network, work: Workspace, count):
    """Empties the tree of `count` members."""
    for k in range(count):
        i = work.members[k]
        work.inside[i] = False
        for near in range(net.near_start[i], net.near_start[i + 1]):
            work.touched[net.end_node[net.near_end[near] ^ 1]] = 0


@kernel
def optimise_tree(net: Network, work: Workspace, unary, choice, count):
    """Sets `choice` of the tree's `count` members to an optimum, given all other nodes. The earlier
    options are kept in `old_choice`. Returns the change of the cost, positive only by rounding."""
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
    """Sets the costs of the options of i, given its neighbours outside of the tree. Returns the
    present cost of the node, of the edges to these neighbours and of the edge to its parent."""
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
    """Adds to each option of the parent of i the least cost of the subtree of i, and notes the
    option of i that has it."""
    h = work.parent_end[i]
    o, base, lines = h ^ 1, net.table_start[h >> 1], net.line_count[h]
    first, start, step, across = net.option_start[i], net.line_start[h], net.step[h], net.step[o]
    work.class_cost[:lines] = np.inf
    for x in range(net.option_start[i + 1] - first):
        line = net.line[start + x]
        if work.cost[first + x] < work.class_cost[line]:
            work.class_cost[line], work.class_pick[line] = work.cost[first + x], x
    least = np.empty(net.line_count[o])
    work.visited[0] += lines * len(least)
    for b in range(len(least)):
        best, best_line = np.inf, 0
        for a in range(lines):
            value = work.class_cost[a] + net.table[base + a * step + b * across]
            if value < best:
                best, best_line = value, a
        least[b] = best
        work.pick[net.line_start[o] + b] = work.class_pick[best_line]
    first, start = net.option_start[net.end_node[o]], net.line_start[o]
    for x in range(net.line_start[o + 1] - start):
        work.cost[first + x] += least[net.line[start + x]]


@inlined
def _decide(net, work, choice, i):
    """Sets the option of i, given its parent's. Returns the cost of the tree if i is its root, and
    0 otherwise."""
    if work.parent_end[i] >= 0:
        o = work.parent_end[i] ^ 1
        line = net.line[net.line_start[o] + choice[net.end_node[o]]]
        choice[i] = work.pick[net.line_start[o] + line]
        return 0.0
    cost = work.cost[net.option_start[i] : net.option_start[i + 1]]
    best = choice[i]  # Ties keep the present option.
    for o in range(len(cost)):
        if cost[o] < cost[best]:
            best = o
    choice[i] = best
    return cost[best]
