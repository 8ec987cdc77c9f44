"""A network in which forbidden options have a large finite cost, and each byte has a price.

The Lagrangian relaxation of the memory rows with prices p[t] >= 0 charges an option
cost[o] + sum_t p[t] bytes[o, t]. With the prefix sums of p, an interval takes two look-ups.
"""

from dataclasses import replace

import numpy as np

from kiwi.solver.bundle import Bundle
from kiwi.solver.compiled import kernel
from kiwi.solver.network import Network, cell

_FIRST_MOVE = 0.05
"""The share of a typical cost by which the first step of the prices would move the bound."""
_LEAST_SCALE = 1e-9
"""The smallest typical cost, as a share of the cost in place of infinity."""


class Relaxed:
    """The relaxed network, which the dual and the primal side of the search share.

    - `exact`: the network itself. `net`: the network with finite tables.
    - `unary` (K): the finite costs of the options.
    - `forbidden`: the finite cost in place of infinity. No assignment without forbidden options and
      pairs costs more.
    - `limit_bytes`: the memory limit, at least 1, so that it can divide.
    """

    def __init__(self, net: Network) -> None:
        self.exact, self.forbidden = net, _forbidden_cost(net)
        self.net = replace(net, table=np.minimum(net.table, self.forbidden))
        self.unary = np.minimum(net.cost, self.forbidden)
        self.limit_bytes = max(net.limit_bytes, 1)

    def priced(self, prices: np.ndarray) -> np.ndarray:
        """Returns the costs of all options at `prices`, shape (K,)."""
        return priced_costs(self.net, self.unary, prices)

    def rent(self, prices: np.ndarray) -> float:
        """Returns the price of the whole limit: the sum of `prices` times the limit."""
        return float(prices.sum()) * self.net.limit_bytes

    def cost(self, choice: np.ndarray) -> float:
        """Returns the cost of an assignment, whatever memory it uses."""
        return float(cost_of(self.net, self.unary, choice))

    def excess(self, choice: np.ndarray) -> np.ndarray:
        """Returns the memory use above the limit at each time, as a share of the limit; negative
        below it."""
        return usage_of(self.net, choice) / self.limit_bytes - 1.0

    def scale(self, bound: float) -> float:
        """Returns a typical cost: the absolute bound, or a small share of `forbidden` if the bound
        is still 0."""
        return max(abs(bound), _LEAST_SCALE * self.forbidden)

    def begin(self, bundle: Bundle, choice: np.ndarray, bound: float) -> None:
        """Restarts the width of the bundle from `choice`.

        The first step then moves the bound by `_FIRST_MOVE` of its value, as long as the excess of
        `choice` stays the same. If `choice` has no excess, its free memory counts instead.
        """
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
    """Returns unary[o] + sum_t prices[t] bytes[o, t] for every option o."""
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
    """Returns the bytes that `choice`, one option per node, holds at each kept time; int64, shape
    (T,)."""
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
    """Returns the node plus edge costs of `choice`. `unary`: the costs of the options."""
    total = 0.0
    for i in range(len(choice)):
        total += unary[net.option_start[i] + choice[i]]
    for e in range(len(net.table_start)):
        tail, head = choice[net.end_node[2 * e]], choice[net.end_node[2 * e + 1]]
        total += net.table[cell(net, 2 * e, tail, head)]
    return total
