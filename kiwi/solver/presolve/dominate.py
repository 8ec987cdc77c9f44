"""Options that another option of the same node replaces in every assignment at no loss.

Option a dominates option b of a node when

    cost[a] - cost[b] + sum over edges of max over partners (table[a, .] - table[b, .]) <= 0

and a holds no more memory than b at any time: whatever the neighbours take, exchanging b for a
costs nothing and breaks no limit. (Dead-end elimination: Desmet et al., Nature 1992, in the form of
Goldstein 1994.)
"""

import numba
import numpy as np

from kiwi.solver.network import Network
from kiwi.solver.presolve.propagate import alive_lines

_MOST_WORK = 300_000
"""Nodes whose comparison takes more steps than this are left as they are."""


@numba.njit(cache=True)
def dominate(net: Network):
    """Costs of all options, infinite also for those that another one dominates."""
    cost = net.cost.copy()
    widest = 1
    for e in range(len(net.tail)):
        widest = max(widest, net.row_count[e], net.col_count[e])
    row_alive, col_alive = np.zeros(widest, dtype=np.bool_), np.zeros(widest, dtype=np.bool_)
    for i in range(len(net.option_start) - 1):
        size = net.option_start[i + 1] - net.option_start[i]
        if size > 1 and _work(net, i, size) <= _MOST_WORK:
            _dominate_node(net, cost, i, size, row_alive, col_alive)
    return cost


@numba.njit(cache=True)
def _work(net, i, size):
    total = size * size * (1 + net.near_start[i + 1] - net.near_start[i])
    for near in range(net.near_start[i], net.near_start[i + 1]):
        e = net.near_edge[near]
        lines = net.row_count[e] if net.tail[e] == i else net.col_count[e]
        total += lines * net.row_count[e] * net.col_count[e]
    return total


@numba.njit(cache=True)
def _dominate_node(net, cost, i, size, row_alive, col_alive):
    first = net.option_start[i]
    margin = np.empty((size, size))  # the most that taking a in place of b can cost
    for a in range(size):
        for b in range(size):
            both = cost[first + a] < np.inf and cost[first + b] < np.inf
            margin[a, b] = cost[first + a] - cost[first + b] if both else np.inf
    for near in range(net.near_start[i], net.near_start[i + 1]):
        _add_edge_margin(net, cost, net.near_edge[near], i, size, margin, row_alive, col_alive)
    for b in range(size):
        for a in range(size):
            cheaper = a != b and margin[a, b] <= 0.0 and cost[first + a] < np.inf
            if cheaper and _holds_no_more_at_any_time(net, first + a, first + b):
                cost[first + b] = np.inf
                break


@numba.njit(cache=True)
def _add_edge_margin(net, cost, e, i, size, margin, row_alive, col_alive):
    alive_lines(net, cost, e, row_alive, col_alive)
    is_tail = net.tail[e] == i
    lines = net.row_count[e] if is_tail else net.col_count[e]
    others = net.col_count[e] if is_tail else net.row_count[e]
    partner_alive = col_alive if is_tail else row_alive
    classes = net.row_class[net.row_start[e] :] if is_tail else net.col_class[net.col_start[e] :]
    worst = np.full((lines, lines), -np.inf)
    for a in range(lines):
        for b in range(lines):
            for c in range(others):
                if a != b and partner_alive[c]:
                    mine = _cell(net, e, a, c, is_tail)
                    theirs = _cell(net, e, b, c, is_tail)
                    if theirs < np.inf:
                        worst[a, b] = max(worst[a, b], mine - theirs)
        worst[a, a] = 0.0
    for a in range(size):
        for b in range(size):
            step = worst[classes[a], classes[b]]
            margin[a, b] += step if step > -np.inf else 0.0


@numba.njit(cache=True)
def _cell(net, e, mine, theirs, is_tail):
    row, col = (mine, theirs) if is_tail else (theirs, mine)
    return net.table[net.table_start[e] + row * net.col_count[e] + col]


@numba.njit(cache=True)
def _holds_no_more_at_any_time(net, a, b):
    """Exact: the difference of the two options' step functions is nowhere positive."""
    for use in range(net.use_start[a], net.use_start[a + 1]):
        if _held(net, a, net.use_begin[use]) > _held(net, b, net.use_begin[use]):
            return False
    for use in range(net.use_start[b], net.use_start[b + 1]):
        end = net.use_end[use]
        if _held(net, a, end) > _held(net, b, end):
            return False
    return True


@numba.njit(cache=True)
def _held(net, option, time):
    total = 0
    for use in range(net.use_start[option], net.use_start[option + 1]):
        if net.use_begin[use] <= time < net.use_end[use]:
            total += net.use_bytes[use]
    return total
