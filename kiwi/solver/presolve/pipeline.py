"""All reductions in turn."""

from dataclasses import replace

from kiwi.solver.network import Network
from kiwi.solver.presolve.contract import contract
from kiwi.solver.presolve.reduction import Reduction, repeat
from kiwi.solver.presolve.times import drop_times

_MOST_MERGE_PASSES = 20
_MOST_TIME_PASSES = 6


def presolve(net: Network) -> Reduction:
    """Merges decided nodes until none is left, then drops times that cannot bind."""
    total = repeat(contract, net, _MOST_MERGE_PASSES)
    if total.infeasible:
        return total
    small = total.net
    for _ in range(_MOST_TIME_PASSES):
        before = len(small.times)
        small = drop_times(small)
        if len(small.times) == before:
            break
    return replace(total, net=small)
