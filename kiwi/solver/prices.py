"""Memory priced by the byte: what an option costs at given prices, and what a choice uses.

The Lagrangian relaxation of the memory rows with prices p[t] >= 0 charges an option
cost[o] + sum_t p[t] bytes[o, t]; with the prefix sums of p each interval costs two look-ups.
"""

import numpy as np

from kiwi.solver.compiled import kernel
from kiwi.solver.network import Network, cell


@kernel
def priced_costs(net: Network, unary, prices):
    """unary[o] + sum_t prices[t] bytes[o, t] for every option."""
    sums = np.zeros(len(prices) + 1)
    for t in range(len(prices)):
        sums[t + 1] = sums[t] + prices[t]
    out = np.empty(len(unary))
    for o in range(len(unary)):
        charge = 0.0
        for use in range(net.use_start[o], net.use_start[o + 1]):
            charge += net.use_bytes[use] * (sums[net.use_end[use]] - sums[net.use_begin[use]])
        out[o] = unary[o] + charge
    return out


@kernel
def usage_of(net: Network, choice):
    """Bytes held at each kept time by `choice`, one option per node; int64, shape (T,)."""
    usage = np.zeros(len(net.times) + 1, dtype=np.int64)
    for i in range(len(choice)):
        o = net.option_start[i] + choice[i]
        for use in range(net.use_start[o], net.use_start[o + 1]):
            usage[net.use_begin[use]] += net.use_bytes[use]
            usage[net.use_end[use]] -= net.use_bytes[use]
    for t in range(len(net.times)):
        usage[t + 1] += usage[t]
    return usage[: len(net.times)]


@kernel
def cost_of(net: Network, unary, choice):
    """Node plus edge costs of `choice`, with `unary` for the costs of options."""
    total = 0.0
    for i in range(len(choice)):
        total += unary[net.option_start[i] + choice[i]]
    for e in range(len(net.table_start)):
        tail, head = choice[net.end_node[2 * e]], choice[net.end_node[2 * e + 1]]
        total += net.table[cell(net, 2 * e, tail, head)]
    return total
