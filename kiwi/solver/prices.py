"""Memory priced by the byte: what an option costs at given prices, and what a choice uses.

The Lagrangian relaxation of the memory rows with prices p[t] >= 0 charges an option
cost[o] + sum_t p[t] bytes[o, t]; with the prefix sums of p each interval costs two look-ups.
"""

import numba
import numpy as np

from kiwi.solver.network import Network


@numba.njit(cache=True)
def priced_costs(net: Network, unary, prices, out):
    """Writes unary[o] + sum_t prices[t] bytes[o, t] for every option to `out`."""
    sums = np.zeros(len(prices) + 1)
    for t in range(len(prices)):
        sums[t + 1] = sums[t] + prices[t]
    for o in range(len(unary)):
        charge = 0.0
        for use in range(net.use_start[o], net.use_start[o + 1]):
            charge += net.use_bytes[use] * (sums[net.use_end[use]] - sums[net.use_begin[use]])
        out[o] = unary[o] + charge


@numba.njit(cache=True)
def usage_of(net: Network, choice):
    """Bytes held at each kept time by `choice`, one option per node; int64, shape (T,)."""
    usage = np.zeros(len(net.times) + 1, dtype=np.int64)
    for i in range(len(choice)):
        o = net.option_start[i] + choice[i]
        for use in range(net.use_start[o], net.use_start[o + 1]):
            usage[net.use_begin[use]] += net.use_bytes[use]
            usage[net.use_end[use]] -= net.use_bytes[use]
    total = 0
    for t in range(len(net.times)):
        total += usage[t]
        usage[t] = total
    return usage[: len(net.times)]


@numba.njit(cache=True)
def cost_of(net: Network, unary, table, choice):
    """Node plus edge costs of `choice` with the given option and table costs."""
    total = 0.0
    for i in range(len(choice)):
        total += unary[net.option_start[i] + choice[i]]
    for e in range(len(net.tail)):
        row = net.row_class[net.row_start[e] + choice[net.tail[e]]]
        col = net.col_class[net.col_start[e] + choice[net.head[e]]]
        total += table[net.table_start[e] + row * net.col_count[e] + col]
    return total
