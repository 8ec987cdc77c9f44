"""A network in which forbidden is merely expensive, and memory has a price by the byte.

The Lagrangian relaxation of the memory rows with prices p[t] >= 0 charges an option
cost[o] + sum_t p[t] bytes[o, t]; with the prefix sums of p each interval costs two look-ups.
"""

from dataclasses import replace

import numpy as np

from kiwi.solver.bundle import Bundle
from kiwi.solver.compiled import kernel
from kiwi.solver.network import Network, cell

_FIRST_MOVE = 0.05
_LEAST_SCALE = 1e-9


class Relaxed:
    """The common numbers of both sides of the search.

    - `exact`: the network itself. `net`: the same with finite tables.
    - `unary` (K): finite costs of the options.
    - `forbidden`: a stand-in for infinity, above the cost of every assignment without forbidden
      pairs.
    - `limit_bytes`: at least 1, to divide by.
    """

    def __init__(self, net: Network) -> None:
        self.exact, self.forbidden = net, _forbidden_cost(net)
        self.net = replace(net, table=np.minimum(net.table, self.forbidden))
        self.unary = np.minimum(net.cost, self.forbidden)
        self.limit_bytes = max(net.limit_bytes, 1)

    def priced(self, prices: np.ndarray) -> np.ndarray:
        """Costs of all options at `prices`."""
        return priced_costs(self.net, self.unary, prices)

    def rent(self, prices: np.ndarray) -> float:
        """The price of the whole limit at `prices`."""
        return float(prices.sum()) * self.net.limit_bytes

    def cost(self, choice: np.ndarray) -> float:
        """Cost of an assignment, whatever memory it uses."""
        return float(cost_of(self.net, self.unary, choice))

    def excess(self, choice: np.ndarray) -> np.ndarray:
        """Memory use above the limit at each time, as a share of the limit."""
        return usage_of(self.net, choice) / self.limit_bytes - 1.0

    def scale(self, bound: float) -> float:
        """A typical cost, where the bound may still be 0."""
        return max(abs(bound), _LEAST_SCALE * self.forbidden)

    def begin(self, bundle: Bundle, choice: np.ndarray, bound: float) -> None:
        """Gives the bundle the width of a first step that would move the bound by a twentieth if
        the excess of `choice` stayed. If it has none, its free memory counts instead."""
        excess = self.excess(choice)
        above = np.maximum(excess, 0.0)
        norm = float(above @ above) or float(excess @ excess)
        if norm > 0.0:
            bundle.begin(_FIRST_MOVE * self.scale(bound) / norm)


def _forbidden_cost(net: Network) -> float:
    cost = np.where(np.isfinite(net.cost), np.abs(net.cost), 0.0)
    table = np.where(np.isfinite(net.table), np.abs(net.table), 0.0)
    total = float(net.over_edges(np.maximum, table).sum())
    if len(cost):
        total += float(np.maximum.reduceat(cost, net.option_start[:-1]).sum())
    return total if total > 0 else 1.0


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
