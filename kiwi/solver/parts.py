"""Hands parts of a search's remaining network to HiGHS.

The nodes of HiGHS's search tree are limited, and its work is estimated from the size of the
network.
"""

import numpy as np

from kiwi.solver.lagrangian import Search
from kiwi.solver.milp import solve_network
from kiwi.solver.network import Network
from kiwi.solver.presolve.reduction import Reduction
from kiwi.solver.request import MILP_SHARE

_MOST_TREE_NODES, _TREE_CELLS = 500, 600_000
"""The largest number of nodes of a MILP's tree, and of these nodes times cells of the network. The
MILP ends there, as a rule before its time is up, and so at the same point on every machine."""
_MILP_WORK = 2.5
"""The work that is charged for a call of HiGHS, per square of the number of cells."""


def tree_nodes(net: Network) -> int:
    """Returns the number of nodes of its tree that HiGHS may visit for a network."""
    return max(1, min(_MOST_TREE_NODES, _TREE_CELLS // max(1, net.size)))


def may_ask_milp(search: Search, net: Network) -> bool:
    """Whether enough time and work are left to hand a network to HiGHS. If so, the work is charged
    to the search."""
    work = _MILP_WORK * net.size**2
    if search.request.seconds_left <= 0 or work > MILP_SHARE * search.work_left:
        return False
    search.work += round(work)
    return True


def solve_part(search: Search, part: Reduction, hint: np.ndarray | None) -> None:
    """Offers the search the best choice that HiGHS finds in a part of the remaining network, if
    time and work are left.

    - `hint`: a choice of the remaining network from which HiGHS starts, or None.
    """
    if not may_ask_milp(search, part.net):
        return
    handed = search.request.handed_to_highs(tree_nodes(part.net))
    lowered = None if hint is None else part.lower(hint)
    choice, _, timed_out = solve_network(part.net, handed, lowered)
    search.out_of_time = search.out_of_time or timed_out
    search.offer_lifted(None if choice is None else part.lift(choice))
