"""A lower bound on the priced network by sequential tree-reweighted message passing.

Every edge takes over costs from its two nodes: `share`, for each end (laid out as `Network.line`)
and option of its node, is added to the edge's table and taken from the node, so the cost of no
assignment changes. The bound is the sum of all nodes' and edges' minima. A forward sweep visits
the nodes in order: node i first pulls the min-marginals of the edges to its predecessors (their
minima are zero then), and hands its cost in equal parts to the edges to its successors. A backward
sweep does the same in reverse. This is TRW-S (Kolmogorov, *Convergent Tree-Reweighted Message
Passing for Energy Minimization*, PAMI 2006) in the form of SRMP (Kolmogorov, *A New Look at
Reweighted Message Passing*, PAMI 2015, section 2): the bound never falls while node costs stay
the same, and stays valid when they change between sweeps.
"""

import numpy as np

from kiwi.solver.compiled import inlined, inner, kernel
from kiwi.solver.network import Network, add_line, widest

Tables = tuple[np.ndarray, np.ndarray]
"""The edges' tables transposed, and as they are, laid out as `Network.table`: minima for the lines
at an end h run along contiguous cells of the (h & 1)-th."""


def tables_of(net: Network) -> Tables:
    """The tables of `net` with their transposes."""
    transposed = np.empty_like(net.table)
    for e in np.unique(net.table_start, return_index=True)[1]:
        first, block = net.table_start[e], net.edge_table(e)
        transposed[first : first + block.size] = block.T.ravel()
    return transposed, net.table


@inner(fastmath=True)
def _pull(net, tables, h, share, line_cost, marginal):
    """marginal[b] = for each line b at end h, the least over the options at the other end of its
    pair's cost and the option's share."""
    o, base, width = h ^ 1, net.table_start[h >> 1], net.line_count[h]
    line_cost[: net.line_count[o]] = np.inf
    for x in range(net.line_start[o], net.line_start[o + 1]):
        line_cost[net.line[x]] = min(line_cost[net.line[x]], share[x])
    marginal[:width] = np.inf
    for a in range(net.line_count[o]):
        add = line_cost[a]
        line = tables[h & 1][base + a * width : base + (a + 1) * width]
        for b in range(width):
            marginal[b] = min(marginal[b], line[b] + add)


@kernel
def sweep(net: Network, tables: Tables, unary, share, choice, forward):
    """One sweep over finite costs; returns the bound.

    A backward sweep writes a rounded assignment to `choice`: nodes are fixed in the order of the
    sweep, each at its best given those before it (Kolmogorov 2006, section 3.1).
    """
    node_count, most = len(net.option_start) - 1, widest(net)
    line_cost, marginal = np.empty(most), np.empty(most)
    costs, guess = np.empty(most), np.empty(most)
    bound = 0.0
    for step in range(node_count):
        i = step if forward else node_count - 1 - step
        first, last = net.option_start[i], net.option_start[i + 1]
        cost = costs[: last - first]
        for o in range(len(cost)):
            cost[o] = unary[first + o]
        ahead = 0
        for near in range(net.near_start[i], net.near_start[i + 1]):
            h = net.near_end[near]
            if (h & 1 == 0) == forward:
                ahead += 1
                _take_back(net, h, share, cost)
            else:
                _pull(net, tables, h, share, line_cost, marginal)
                _take(net, h, share, marginal, cost)
        behind = net.near_start[i + 1] - net.near_start[i] - ahead
        weight = 1.0 / max(1, ahead, behind)
        if not forward:
            choice[i] = _round(net, unary, share, choice, i, guess[: last - first])
        if ahead > 0:
            _hand_on(net, i, forward, weight, share, cost)
        least = np.inf
        for o in range(len(cost)):
            least = min(least, cost[o])
        bound += (1.0 - ahead * weight) * least
    return bound


@inner
def _take_back(net, h, share, cost):
    """Edges to nodes that follow: what they took from this node before."""
    start = net.line_start[h]
    for o in range(len(cost)):
        cost[o] -= share[start + o]


@inlined
def _take(net, h, share, marginal, cost):
    """Edges to nodes that came before: takes their min-marginals over to this node."""
    start = net.line_start[h]
    for o in range(len(cost)):
        pulled = marginal[net.line[start + o]]
        share[start + o] = -pulled
        cost[o] += pulled


@inlined
def _round(net, unary, share, choice, i, guess):
    """The best option of i given the nodes after it, and what it is worth to those before it."""
    for o in range(len(guess)):
        guess[o] = unary[net.option_start[i] + o]
    for near in range(net.near_start[i], net.near_start[i + 1]):
        h = net.near_end[near]
        if h & 1:
            _take_back(net, h, share, guess)
        else:
            add_line(net, h, choice[net.end_node[h ^ 1]], guess)
    best = 0
    for o in range(1, len(guess)):
        if guess[o] < guess[best]:
            best = o
    return best


@inlined
def _hand_on(net, i, forward, weight, share, cost):
    for near in range(net.near_start[i], net.near_start[i + 1]):
        h = net.near_end[near]
        if (h & 1 == 0) == forward:
            start = net.line_start[h]
            for o in range(len(cost)):
                share[start + o] += weight * cost[o]


@kernel
def reduced_costs(net: Network, tables: Tables, unary, share):
    """How much above the bound every assignment with an option lies at least, shape (K,).

    Sum of the option's cost above its node's least, and of the least each edge charges for it.
    Holds after any sweep, whose shares leave no edge with a negative minimum.
    """
    spare, most = unary.copy(), widest(net)
    line_cost, marginal = np.empty(most), np.empty(most)
    starts = net.option_start
    for h in range(len(net.end_node)):
        i = net.end_node[h]
        _take_back(net, h, share, spare[starts[i] : starts[i + 1]])
    for i in range(len(starts) - 1):
        least = np.inf
        for o in range(starts[i], starts[i + 1]):
            least = min(least, spare[o])
        for o in range(starts[i], starts[i + 1]):
            spare[o] -= least
    for h in range(len(net.end_node)):
        _pull(net, tables, h, share, line_cost, marginal)
        first = starts[net.end_node[h]] - net.line_start[h]
        for x in range(net.line_start[h], net.line_start[h + 1]):
            spare[first + x] += max(0.0, marginal[net.line[x]] + share[x])
    return spare
