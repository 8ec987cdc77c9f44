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

from typing import NamedTuple

import numba
import numpy as np

from kiwi.solver.network import Network


class Tables(NamedTuple):
    """The edges' tables twice, laid out as `Network.table`: by rows, and each one transposed.

    Minima over either end then run along contiguous lines.
    """

    by_row: np.ndarray
    by_column: np.ndarray


def tables_of(net: Network, table: np.ndarray) -> Tables:
    """`table` with its transposes."""
    by_column = np.empty_like(table)
    for e in np.unique(net.table_start, return_index=True)[1]:
        first, rows, cols = net.table_start[e], net.row_count[e], net.col_count[e]
        block = table[first : first + rows * cols].reshape(rows, cols)
        by_column[first : first + rows * cols] = block.T.ravel()
    return Tables(table, by_column)


@numba.njit(cache=True, fastmath=True)
def _pull(table, base, classes, share, lines, width, line_cost, marginal):
    """marginal[b] = min over lines a of table[a, b] + the least share of an option of line a."""
    line_cost[:lines] = np.inf
    for o in range(len(classes)):
        line_cost[classes[o]] = min(line_cost[classes[o]], share[o])
    marginal[:width] = np.inf
    for a in range(lines):
        add = line_cost[a]
        line = table[base + a * width : base + (a + 1) * width]
        for b in range(width):
            marginal[b] = min(marginal[b], line[b] + add)


@numba.njit(cache=True)
def _pull_to_head(net, tables, e, tail_share, line_cost, marginal):
    """marginal[B] = min over options of the tail of table + share."""
    first, last = net.row_start[e], net.row_start[e + 1]
    classes, share = net.row_class[first:last], tail_share[first:last]
    rows, cols, base = net.row_count[e], net.col_count[e], net.table_start[e]
    _pull(tables.by_row, base, classes, share, rows, cols, line_cost, marginal)


@numba.njit(cache=True)
def _pull_to_tail(net, tables, e, head_share, line_cost, marginal):
    """marginal[A] = min over options of the head of table + share."""
    first, last = net.col_start[e], net.col_start[e + 1]
    classes, share = net.col_class[first:last], head_share[first:last]
    rows, cols, base = net.row_count[e], net.col_count[e], net.table_start[e]
    _pull(tables.by_column, base, classes, share, cols, rows, line_cost, marginal)


@numba.njit(cache=True)
def sweep(net: Network, tables: Tables, unary, tail_share, head_share, choice, forward):
    """One sweep over finite costs; returns the bound.

    A backward sweep writes a rounded assignment to `choice`: nodes are fixed in the order of the
    sweep, each at its best given those before it (Kolmogorov 2006, section 3.1).
    """
    node_count = len(net.option_start) - 1
    widest = _widest(net)
    line_cost, marginal = np.empty(widest), np.empty(widest)
    cost, guess = np.empty(widest), np.empty(widest)
    bound = 0.0
    for step in range(node_count):
        i = step if forward else node_count - 1 - step
        first = net.option_start[i]
        size = net.option_start[i + 1] - first
        cost[:size] = unary[first : first + size]
        ahead = 0
        for near in range(net.near_start[i], net.near_start[i + 1]):
            e = net.near_edge[near]
            is_tail = net.tail[e] == i
            if is_tail == forward:
                ahead += 1
                _take_back(net, e, is_tail, tail_share, head_share, cost, size)
                continue
            if is_tail:
                _pull_to_tail(net, tables, e, head_share, line_cost, marginal)
            else:
                _pull_to_head(net, tables, e, tail_share, line_cost, marginal)
            _take(net, e, is_tail, tail_share, head_share, marginal, cost, size)
        behind = net.near_start[i + 1] - net.near_start[i] - ahead
        weight = 1.0 / max(1, ahead, behind)
        if not forward:
            choice[i] = _round(net, tables.by_row, unary, head_share, choice, i, guess, size)
        if ahead > 0:
            _hand_on(net, i, forward, weight, tail_share, head_share, cost, size)
        bound += (1.0 - ahead * weight) * np.min(cost[:size])
    return bound


@numba.njit(cache=True)
def _widest(net):
    widest = 1
    for i in range(len(net.option_start) - 1):
        widest = max(widest, net.option_start[i + 1] - net.option_start[i])
    return widest


@numba.njit(cache=True)
def _take_back(net, e, is_tail, tail_share, head_share, cost, size):
    """Edges to nodes that follow: what they took from this node before."""
    share = tail_share if is_tail else head_share
    start = net.row_start[e] if is_tail else net.col_start[e]
    for o in range(size):
        cost[o] -= share[start + o]


@numba.njit(cache=True)
def _take(net, e, is_tail, tail_share, head_share, marginal, cost, size):
    """Edges to nodes that came before: takes their min-marginals over to this node."""
    share = tail_share if is_tail else head_share
    classes = net.row_class if is_tail else net.col_class
    start = net.row_start[e] if is_tail else net.col_start[e]
    for o in range(size):
        pulled = marginal[classes[start + o]]
        share[start + o] = -pulled
        cost[o] += pulled


@numba.njit(cache=True)
def _round(net, table, unary, head_share, choice, i, guess, size):
    """The best option of i given the nodes after it, and what it is worth to those before it."""
    first = net.option_start[i]
    guess[:size] = unary[first : first + size]
    for near in range(net.near_start[i], net.near_start[i + 1]):
        e = net.near_edge[near]
        if net.tail[e] == i:
            _add_fixed(net, table, e, choice, guess, size)
        else:
            guess[:size] -= head_share[net.col_start[e] : net.col_start[e] + size]
    return np.argmin(guess[:size])


@numba.njit(cache=True)
def _add_fixed(net, table, e, choice, guess, size):
    """An edge to a head that is fixed already: its cost with that choice."""
    base, cols = net.table_start[e], net.col_count[e]
    col = net.col_class[net.col_start[e] + choice[net.head[e]]]
    for o in range(size):
        guess[o] += table[base + net.row_class[net.row_start[e] + o] * cols + col]


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
def reduced_costs(net: Network, tables: Tables, unary, tail_share, head_share):
    """How much above the bound every assignment with an option lies at least, shape (K,).

    Sum of the option's cost above its node's least, and of the least each edge charges for it.
    Holds after any sweep, whose shares leave no edge with a negative minimum.
    """
    spare = unary.copy()
    widest = _widest(net)
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
        _pull_to_tail(net, tables, e, head_share, class_cost, marginal)
        first = net.option_start[net.tail[e]] - net.row_start[e]
        for o in range(net.row_start[e], net.row_start[e + 1]):
            spare[first + o] += max(0.0, marginal[net.row_class[o]] + tail_share[o])
        _pull_to_head(net, tables, e, tail_share, class_cost, marginal)
        first = net.option_start[net.head[e]] - net.col_start[e]
        for o in range(net.col_start[e], net.col_start[e + 1]):
            spare[first + o] += max(0.0, marginal[net.col_class[o]] + head_share[o])
    return spare
