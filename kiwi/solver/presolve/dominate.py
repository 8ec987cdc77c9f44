"""Rules out options without a partner, and options that another option dominates.

Forbidden pairs are propagated until no option without a partner is left (arc consistency).

Option a dominates option b of a node if

    cost[a] - cost[b] + sum over edges of max over partners (table[a, .] - table[b, .]) <= 0

and a holds no more memory than b at any time. Whatever the neighbours take, a in place of b then
costs no more and breaks no limit (dead-end elimination: Desmet et al., Nature 1992, in the form of
Goldstein 1994).
"""

import numpy as np

from kiwi.solver.compiled import inlined, inner, kernel
from kiwi.solver.network import Network, widest

_MOST_WORK = 300_000
"""The largest number of steps for comparing the options of a node. Nodes that need more are left
unchanged."""


@kernel
def dominate(net: Network):
    """Returns the costs of all options, with infinity for options that another option dominates."""
    cost = net.cost.copy()
    alive = np.empty(widest(net), dtype=np.bool_)
    for i in range(len(net.option_start) - 1):
        size = net.option_start[i + 1] - net.option_start[i]
        if size > 1 and _work(net, i, size) <= _MOST_WORK:
            _dominate_node(net, cost, i, size, alive)
    return cost


@inlined
def _work(net, i, size):
    total = size * size * (1 + net.near_start[i + 1] - net.near_start[i])
    for near in range(net.near_start[i], net.near_start[i + 1]):
        h = net.near_end[near]
        total += net.line_count[h] * net.line_count[h] * net.line_count[h ^ 1]
    return total


@inlined
def _dominate_node(net, cost, i, size, alive):
    first = net.option_start[i]
    margin = np.empty(size * size)  # By a, then b: the most that a costs more than b.
    for a in range(size):
        for b in range(size):
            both = cost[first + a] < np.inf and cost[first + b] < np.inf
            margin[a * size + b] = cost[first + a] - cost[first + b] if both else np.inf
    for near in range(net.near_start[i], net.near_start[i + 1]):
        _add_edge_margin(net, cost, net.near_end[near], margin, alive)
    for b in range(size):
        for a in range(size):
            cheaper = a != b and margin[a * size + b] <= 0.0 and cost[first + a] < np.inf
            if cheaper and _holds_no_more_at_any_time(net, first + a, first + b):
                cost[first + b] = np.inf
                break


@inlined
def _add_edge_margin(net, cost, h, margin, alive):
    mark_alive(net, cost, h ^ 1, alive)
    lines, base = net.line_count[h], net.table_start[h >> 1]
    step, across = net.step[h], net.step[h ^ 1]
    worst = np.empty(lines * lines)
    for a in range(lines):
        for b in range(lines):
            most = -np.inf if a != b else 0.0
            for c in range(net.line_count[h ^ 1]):
                if a != b and alive[c]:
                    cost_a = net.table[base + a * step + c * across]
                    cost_b = net.table[base + b * step + c * across]
                    if cost_b < np.inf:
                        most = max(most, cost_a - cost_b)
            worst[a * lines + b] = most
    classes = net.line[net.line_start[h] : net.line_start[h + 1]]
    for a in range(len(classes)):
        for b in range(len(classes)):
            step_cost = worst[classes[a] * lines + classes[b]]
            margin[a * len(classes) + b] += step_cost if step_cost > -np.inf else 0.0


@inlined
def _holds_no_more_at_any_time(net, a, b):
    """Whether option a holds no more memory than option b at any time."""
    for use in range(net.use_start[a], net.use_start[a + 1]):
        if _held(net, a, net.use_begin[use]) > _held(net, b, net.use_begin[use]):
            return False
    for use in range(net.use_start[b], net.use_start[b + 1]):
        end = net.use_end[use]
        if _held(net, a, end) > _held(net, b, end):
            return False
    return True


@inner
def _held(net, option, time):
    total = 0
    for use in range(net.use_start[option], net.use_start[option + 1]):
        if net.use_begin[use] <= time < net.use_end[use]:
            total += net.use_bytes[use]
    return total


@kernel
def propagate(net: Network):
    """Returns the costs of all options, with infinity for options for which some neighbour has no
    partner."""
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
    """Sets `alive` to whether each line at end h has an option with finite cost."""
    alive[: net.line_count[h]] = False
    first = net.option_start[net.end_node[h]] - net.line_start[h]
    for x in range(net.line_start[h], net.line_start[h + 1]):
        if cost[first + x] < np.inf:
            alive[net.line[x]] = True


@inlined
def _revise(net, cost, e, alive, kept):
    """Rules out, in `cost`, the options of the nodes of edge e whose line has no partner. Returns
    whether there were any."""
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
