"""Applies all reductions in turn."""

from dataclasses import replace

import numpy as np

from kiwi.solver.network import Network
from kiwi.solver.presolve.contract import contract
from kiwi.solver.presolve.dominate import dominate
from kiwi.solver.presolve.join import join
from kiwi.solver.presolve.reduction import Reduction, chain, repeat
from kiwi.solver.presolve.times import drop_times

_MOST_MERGE_PASSES = 20
"""The largest number of passes that merge decided nodes."""
_MOST_TIME_PASSES = 6
"""The largest number of passes that drop times."""
_MOST_DOMINANCE_PASSES = 4
"""The largest number of passes that rule out dominated options, after nodes are joined."""


def presolve(net: Network) -> Reduction:
    """Returns the network after all reductions.

    Drops times that cannot bind, merges decided nodes and rules out dominated options. Then joins
    nodes with few partners, and repeats the other reductions as long as they find more.
    """
    total = _reduced(_with_fewer_times(net), 1)
    if total.infeasible:
        return total
    joined = join(total.net)
    if joined.infeasible:
        return chain(total, joined)
    return chain(total, chain(joined, _reduced(joined.net, _MOST_DOMINANCE_PASSES)))


def _reduced(net: Network, most_dominance_passes: int) -> Reduction:
    total = repeat(contract, net, _MOST_MERGE_PASSES)
    for _ in range(most_dominance_passes):
        if total.infeasible:
            return total
        total = replace(total, net=_with_fewer_times(total.net))
        cost = dominate(total.net)
        if np.isfinite(cost).all():
            break
        total = chain(total, repeat(contract, replace(total.net, cost=cost), _MOST_MERGE_PASSES))
    return total if total.infeasible else replace(total, net=_with_fewer_times(total.net))


def _with_fewer_times(net: Network) -> Network:
    small = net
    for _ in range(_MOST_TIME_PASSES):
        before = len(small.times)
        small = drop_times(small)
        if len(small.times) == before:
            break
    return small
