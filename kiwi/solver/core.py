"""The core of a network: of each node the options near the relaxation's, few enough for a MILP.

Trees (`kiwi.solver.trees`) are exact but for the limit, which a move keeps or is taken back. Where
large choices hold the peak, a better solution differs in nodes far apart that change places in
memory; no tree contains these, and prices do not tell them apart. Most options of such nodes are in
no good solution: their reduced costs are a large share of what is open. What is left without them
is a network that a MILP solves as a whole (core problems: Balas and Zemel, *An algorithm for large
zero-one knapsack problems*, Operations Research 1980; kernel search: Angelelli, Mansini and
Speranza, Computers and Operations Research 2010). Its bound says nothing of the network.
"""

import numpy as np

from kiwi.solver.network import Network
from kiwi.solver.presolve.pipeline import presolve
from kiwi.solver.presolve.reduction import Reduction

_PRECISION = 50
"""Bisection ends where the numbers of options kept differ by a share of one in so many."""


def core(
    net: Network, reduced_costs: np.ndarray, choice: np.ndarray | None, most_cells: int
) -> Reduction | None:
    """The network with the options of least reduced cost (K,), and those of a choice where one is
    given, presolved.

    As many options as leave at most `most_cells` options and table cells after presolve; None where
    no number does.
    """
    taken = net.option_start[:-1] + choice if choice is not None else np.zeros(0, dtype=np.int64)
    order = np.argsort(reduced_costs, kind="stable")
    found, low, high = None, net.node_count, net.option_count + 1
    while high - low > 1 + low // _PRECISION:
        count = (low + high) // 2
        keep = np.zeros(net.option_count, dtype=np.bool_)
        keep[order[:count]] = keep[taken] = True
        part = presolve(net._replace(cost=np.where(keep, net.cost, np.inf)))
        if part.infeasible:
            low = count
        elif part.net.option_count + part.net.cell_count <= most_cells:
            found, low = part, count
        else:
            high = count
    return found
