"""Parts of a search's remaining network, handed to HiGHS. Its work is limited and counted by nodes
of its tree.
"""

import numpy as np

from kiwi.solver.lagrangian import Search
from kiwi.solver.milp import solve_network
from kiwi.solver.network import Network
from kiwi.solver.presolve.reduction import Reduction
from kiwi.solver.request import MILP_SHARE

_MOST_TREE_NODES, _TREE_CELLS = 500, 600_000
"""Nodes of a MILP's tree, and nodes times cells. Within these, work and not the clock ends it."""
_MILP_WORK = 2.5
"""The work of HiGHS, counted by the square of the cells, whatever it takes."""


def tree_nodes(net: Network) -> int:
    """How many nodes of its tree HiGHS may visit."""
    return max(1, min(_MOST_TREE_NODES, _TREE_CELLS // max(1, net.size)))


def may_ask_milp(search: Search, net: Network) -> bool:
    """Whether there is time and work left for a network; spends the work."""
    work = _MILP_WORK * net.size**2
    if search.request.seconds_left <= 0 or work > MILP_SHARE * search.work_left:
        return False
    search.work += round(work)
    return True


def solve_part(search: Search, part: Reduction, hint: np.ndarray | None) -> None:
    """Offers the search the best that HiGHS finds in a part of the remaining network, as long as
    there is time and work. `hint`: a choice of the remaining network."""
    if not may_ask_milp(search, part.net):
        return
    handed = search.request.handed_to_highs(tree_nodes(part.net))
    lowered = None if hint is None else part.lower(hint)
    choice, _, timed_out = solve_network(part.net, handed, lowered)
    search.out_of_time = search.out_of_time or timed_out
    search.offer_lifted(None if choice is None else part.lift(choice))
