"""Options without a partner: forbidden pairs propagated until nothing changes (arc consistency)."""

import numba
import numpy as np

from kiwi.solver.network import Network


@numba.njit(cache=True)
def propagate(net: Network):
    """Costs of all options, infinite also for those that some neighbour has no partner for."""
    cost = net.cost.copy()
    widest = 1
    for e in range(len(net.tail)):
        widest = max(widest, net.row_count[e], net.col_count[e])
    row_alive, col_alive = np.zeros(widest, dtype=np.bool_), np.zeros(widest, dtype=np.bool_)
    changed = True
    while changed:
        changed = False
        for e in range(len(net.tail)):
            if _revise(net, cost, e, row_alive, col_alive):
                changed = True
    return cost


@numba.njit(cache=True)
def alive_lines(net, cost, e, row_alive, col_alive):
    """Marks the classes of an edge that an option with finite cost belongs to."""
    row_alive[: net.row_count[e]] = False
    col_alive[: net.col_count[e]] = False
    first = net.option_start[net.tail[e]] - net.row_start[e]
    for a in range(net.row_start[e], net.row_start[e + 1]):
        if cost[first + a] < np.inf:
            row_alive[net.row_class[a]] = True
    first = net.option_start[net.head[e]] - net.col_start[e]
    for b in range(net.col_start[e], net.col_start[e + 1]):
        if cost[first + b] < np.inf:
            col_alive[net.col_class[b]] = True


@numba.njit(cache=True)
def _revise(net, cost, e, row_alive, col_alive):
    """Forbids the options of one edge's nodes whose line has no finite partner."""
    alive_lines(net, cost, e, row_alive, col_alive)
    rows, cols, base = net.row_count[e], net.col_count[e], net.table_start[e]
    row_kept, col_kept = np.zeros(rows, dtype=np.bool_), np.zeros(cols, dtype=np.bool_)
    for row in range(rows):
        for col in range(cols):
            if row_alive[row] and col_alive[col] and net.table[base + row * cols + col] < np.inf:
                row_kept[row] = True
                col_kept[col] = True
    changed = False
    first = net.option_start[net.tail[e]] - net.row_start[e]
    for a in range(net.row_start[e], net.row_start[e + 1]):
        if cost[first + a] < np.inf and not row_kept[net.row_class[a]]:
            cost[first + a] = np.inf
            changed = True
    first = net.option_start[net.head[e]] - net.col_start[e]
    for b in range(net.col_start[e], net.col_start[e + 1]):
        if cost[first + b] < np.inf and not col_kept[net.col_class[b]]:
            cost[first + b] = np.inf
            changed = True
    return changed
