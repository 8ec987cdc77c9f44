"""Options without a partner: forbidden pairs propagated until nothing changes (arc consistency)."""

import numpy as np

from kiwi.solver.compiled import inlined, inner, kernel
from kiwi.solver.network import Network, widest


@kernel
def propagate(net: Network):
    """Costs of all options, infinite also for those that some neighbour has no partner for."""
    cost, most = net.cost.copy(), widest(net)
    alive, kept = np.empty(2 * most, dtype=np.bool_), np.empty(2 * most, dtype=np.bool_)
    changed = True
    while changed:
        changed = False
        for e in range(len(net.table_start)):
            changed |= _revise(net, cost, e, alive, kept)
    return cost


@inner
def mark_alive(net, cost, h, alive):
    """Marks the lines at an end that an option with finite cost belongs to."""
    alive[: net.line_count[h]] = False
    first = net.option_start[net.end_node[h]] - net.line_start[h]
    for x in range(net.line_start[h], net.line_start[h + 1]):
        if cost[first + x] < np.inf:
            alive[net.line[x]] = True


@inlined
def _revise(net, cost, e, alive, kept):
    """Forbids the options of one edge's nodes whose line has no finite partner."""
    most = len(alive) // 2
    mark_alive(net, cost, 2 * e, alive[:most])
    mark_alive(net, cost, 2 * e + 1, alive[most:])
    kept[:] = False
    rows, columns, base = net.line_count[2 * e], net.line_count[2 * e + 1], net.table_start[e]
    for a in range(rows):
        for b in range(columns):
            if alive[a] and alive[most + b] and net.table[base + a * columns + b] < np.inf:
                kept[a] = kept[most + b] = True
    changed = False
    for h in (2 * e, 2 * e + 1):
        first = net.option_start[net.end_node[h]] - net.line_start[h]
        for x in range(net.line_start[h], net.line_start[h + 1]):
            if cost[first + x] < np.inf and not kept[(h & 1) * most + net.line[x]]:
                cost[first + x] = np.inf
                changed = True
    return changed
