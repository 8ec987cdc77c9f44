"""A lower bound on the priced network by sequential tree-reweighted message passing.

Every edge e = (i, j) takes over costs from its two nodes: `tail_share[e, o]` and
`head_share[e, o]` are added to the edge's table and taken from the nodes, so the cost of no
assignment changes. The bound is the sum of all nodes' and edges' minima. A forward sweep visits
the nodes in order: node i first pulls the min-marginals of the edges to its predecessors (their
minima are zero then), and hands its cost in equal parts to the edges to its successors. A backward
sweep does the same in reverse. This is TRW-S (Kolmogorov, *Convergent Tree-Reweighted Message
Passing for Energy Minimization*, PAMI 2006) in the form of SRMP (Kolmogorov, *A New Look at
Reweighted Message Passing*, PAMI 2015, section 2): the bound never falls while node costs stay
the same, and stays valid when they change between sweeps.
"""

import numba
import numpy as np

from kiwi.solver.network import Network


@numba.njit(cache=True, fastmath=True)
def _pull_to_head(net, table, e, tail_share, class_cost, marginal):
    """marginal[B] = min over options of the tail of table + share."""
    rows, cols, base = net.row_count[e], net.col_count[e], net.table_start[e]
    class_cost[:rows] = np.inf
    for a in range(net.row_start[e], net.row_start[e + 1]):
        row = net.row_class[a]
        class_cost[row] = min(class_cost[row], tail_share[a])
    marginal[:cols] = np.inf
    for row in range(rows):
        add = class_cost[row]
        line = table[base + row * cols : base + (row + 1) * cols]
        for col in range(cols):
            marginal[col] = min(marginal[col], line[col] + add)


@numba.njit(cache=True, fastmath=True)
def _pull_to_tail(net, table, e, head_share, class_cost, marginal):
    """marginal[A] = min over options of the head of table + share."""
    rows, cols, base = net.row_count[e], net.col_count[e], net.table_start[e]
    class_cost[:cols] = np.inf
    for b in range(net.col_start[e], net.col_start[e + 1]):
        col = net.col_class[b]
        class_cost[col] = min(class_cost[col], head_share[b])
    for row in range(rows):
        line = table[base + row * cols : base + (row + 1) * cols]
        least = np.inf
        for col in range(cols):
            least = min(least, line[col] + class_cost[col])
        marginal[row] = least


@numba.njit(cache=True)
def sweep(net: Network, table, unary, tail_share, head_share, choice, forward):
    """One sweep; returns the bound and writes a rounded assignment to `choice`.

    `table` and `unary` are finite costs (`finite_costs`). The rounding fixes nodes in the order
    of the sweep, each at its best given those before it (Kolmogorov 2006, section 3.1).
    """
    node_count = len(net.option_start) - 1
    widest = 1
    for i in range(node_count):
        widest = max(widest, net.option_start[i + 1] - net.option_start[i])
    class_cost, marginal = np.empty(widest), np.empty(widest)
    cost, guess = np.empty(widest), np.empty(widest)
    bound = 0.0
    for step in range(node_count):
        i = step if forward else node_count - 1 - step
        first = net.option_start[i]
        size = net.option_start[i + 1] - first
        cost[:size] = unary[first : first + size]
        guess[:size] = unary[first : first + size]
        ahead = 0
        for near in range(net.near_start[i], net.near_start[i + 1]):
            e = net.near_edge[near]
            is_tail = net.tail[e] == i
            if is_tail == forward:
                ahead += 1
                _add_waiting(net, e, is_tail, tail_share, head_share, cost, guess, size)
            else:
                _pull(
                    net, table, e, is_tail, tail_share, head_share, class_cost, marginal, cost, size
                )
                _add_fixed(net, table, e, is_tail, choice, guess, size)
        choice[i] = np.argmin(guess[:size])
        behind = net.near_start[i + 1] - net.near_start[i] - ahead
        weight = 1.0 / max(1, ahead, behind)
        if ahead > 0:
            _hand_on(net, i, forward, weight, tail_share, head_share, cost, size)
        bound += (1.0 - ahead * weight) * np.min(cost[:size])
    return bound


@numba.njit(cache=True)
def _add_waiting(net, e, is_tail, tail_share, head_share, cost, guess, size):
    """Edges to nodes that follow: what they took from this node before."""
    share = tail_share if is_tail else head_share
    start = net.row_start[e] if is_tail else net.col_start[e]
    for o in range(size):
        cost[o] -= share[start + o]
        guess[o] -= share[start + o]


@numba.njit(cache=True)
def _pull(net, table, e, is_tail, tail_share, head_share, class_cost, marginal, cost, size):
    """Edges to nodes that came before: takes their min-marginals over to this node."""
    if is_tail:
        _pull_to_tail(net, table, e, head_share, class_cost, marginal)
        share, classes, start = tail_share, net.row_class, net.row_start[e]
    else:
        _pull_to_head(net, table, e, tail_share, class_cost, marginal)
        share, classes, start = head_share, net.col_class, net.col_start[e]
    for o in range(size):
        pulled = marginal[classes[start + o]]
        share[start + o] = -pulled
        cost[o] += pulled


@numba.njit(cache=True)
def _add_fixed(net, table, e, is_tail, choice, guess, size):
    """Edges to nodes already rounded: their cost with that choice."""
    base, cols = net.table_start[e], net.col_count[e]
    if is_tail:
        col = net.col_class[net.col_start[e] + choice[net.head[e]]]
        for o in range(size):
            guess[o] += table[base + net.row_class[net.row_start[e] + o] * cols + col]
    else:
        row = net.row_class[net.row_start[e] + choice[net.tail[e]]]
        for o in range(size):
            guess[o] += table[base + row * cols + net.col_class[net.col_start[e] + o]]


@numba.njit(cache=True)
def _hand_on(net, i, forward, weight, tail_share, head_share, cost, size):
    for near in range(net.near_start[i], net.near_start[i + 1]):
        e = net.near_edge[near]
        if (net.tail[e] == i) == forward:
            share = tail_share if forward else head_share
            start = net.row_start[e] if forward else net.col_start[e]
            for o in range(size):
                share[start + o] += weight * cost[o]


@numba.njit(cache=True)
def reduced_costs(net: Network, table, unary, tail_share, head_share):
    """How much above the bound every assignment with an option lies at least, shape (K,).

    Sum of the option's cost above its node's least, and of the least each edge charges for it.
    Holds after any sweep, whose shares leave no edge with a negative minimum.
    """
    spare = unary.copy()
    widest = 1
    for i in range(len(net.option_start) - 1):
        widest = max(widest, net.option_start[i + 1] - net.option_start[i])
    class_cost, marginal = np.empty(widest), np.empty(widest)
    for e in range(len(net.tail)):
        for o in range(net.row_start[e], net.row_start[e + 1]):
            spare[net.option_start[net.tail[e]] + o - net.row_start[e]] -= tail_share[o]
        for o in range(net.col_start[e], net.col_start[e + 1]):
            spare[net.option_start[net.head[e]] + o - net.col_start[e]] -= head_share[o]
    for i in range(len(net.option_start) - 1):
        first, last = net.option_start[i], net.option_start[i + 1]
        spare[first:last] -= spare[first:last].min()
    for e in range(len(net.tail)):
        _pull_to_tail(net, table, e, head_share, class_cost, marginal)
        first = net.option_start[net.tail[e]] - net.row_start[e]
        for o in range(net.row_start[e], net.row_start[e + 1]):
            spare[first + o] += max(0.0, marginal[net.row_class[o]] + tail_share[o])
        _pull_to_head(net, table, e, tail_share, class_cost, marginal)
        first = net.option_start[net.head[e]] - net.col_start[e]
        for o in range(net.col_start[e], net.col_start[e + 1]):
            spare[first + o] += max(0.0, marginal[net.col_class[o]] + head_share[o])
    return spare
