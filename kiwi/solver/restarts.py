"""Restarts of the search without prices and with other seeds, for the whole network and for the
part on which their solutions disagree.

If a few large choices settle most others, the result of a search depends on the prices at which its
first solutions were made. Neither a neighbourhood nor a solution made at the final prices leads
away from it. A restart without prices and without a solution may end with a much better or a much
worse cost. It uses the options that may still be in a better solution, and does not wait for the
bound.

Choices on which good solutions agree are likely to be in better solutions, too. They are fixed, and
the remaining, much smaller network is also searched without prices (backbones: Zhang and Looks, *A
novel local search algorithm for the traveling salesman problem that exploits backbones*, IJCAI
2005). HiGHS then finds the best mixture of the options that some solution takes. This covers all
paths of path relinking at once (tour merging: Cook and Seymour, INFORMS Journal on Computing 2003).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kiwi.solver.edge_tables import owners
from kiwi.solver.lagrangian import Search
from kiwi.solver.network import Network
from kiwi.solver.parts import solve_part
from kiwi.solver.presolve.pipeline import presolve
from kiwi.solver.presolve.reduction import Reduction
from kiwi.solver.relaxed import cost_of
from kiwi.solver.request import MILP_SHARE

_WHOLE, _APART, _MOST_IDLE = 3, 2, 3
"""The number of restarts of the whole remaining network, and of the part on which solutions
disagree; and the number of times in a row that both may find nothing better before the restarts
end."""
_MORE_WORK = 5.0
"""The largest work of all restarts, as a multiple of the work of the search before them."""
_MOST_COMPARED, _NEAR = 8, 1.1
"""The largest number of solutions that are compared, and the largest factor by which each may cost
more than the best."""


def search_again(search: Search) -> None:
    """Restarts the search as long as restarts find better solutions and work is left for them. Then
    rules out options that cannot be in a better solution."""
    first, idle, lowered = search.objective, 0, search.lowered()
    choices = [] if lowered is None else [lowered]
    until = search.work + min(_MORE_WORK * search.work, MILP_SHARE * search.work_left)
    while idle < _MOST_IDLE and search.is_far() and search.work < until:
        before = search.objective
        choices += _run(search, Reduction.nothing(search.left.net), _WHOLE, until)
        _mix(search, _near(search, choices), until)
        idle = 0 if search.objective < before else idle + 1
    if search.objective < first:
        search.shrink(search.dual())


def _run(search: Search, part: Reduction, count: int, until_work: float) -> list[np.ndarray]:
    """Returns the choices that `count` restarts of a part find; fewer if the work is used up."""
    choices = []
    for _ in range(count if part.net.node_count else 0):
        if search.is_far() and search.work < until_work:
            choices.append(search.run_anew(part))
    return [choice for choice in choices if choice is not None]


def _mix(search: Search, near: list[np.ndarray], until_work: float) -> None:
    """Searches for better solutions among the mixtures of the choices `near`."""
    if len(near) < 2:
        return
    net = search.left.net
    apart = _run(search, disagreement(net, near), _APART, until_work)
    part = mixtures(net, near + apart)
    if part.net.node_count and search.is_far():
        solve_part(search, part, search.lowered())


def _near(search: Search, found: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the distinct choices among the search's solution and `found` whose cost is near the
    best, the cheapest first. `found` must not have mixtures of other choices, or all choices would
    soon be alike."""
    net, best = search.left.net, search.lowered()
    choices = {
        candidate.tobytes(): candidate for candidate in (found if best is None else [best, *found])
    }
    priced = [(float(cost_of(net, net.cost, choice)), choice) for choice in choices.values()]
    priced.sort(key=lambda entry: entry[0])
    return [
        candidate for cost, candidate in priced[:_MOST_COMPARED] if cost <= _NEAR * priced[0][0]
    ]


def mixtures(net: Network, choices: Sequence[np.ndarray]) -> Reduction:
    """Returns the presolved network with only the options that one of the choices, shape (n,),
    takes."""
    return _with(net, _taken(net, choices))


def disagreement(net: Network, choices: Sequence[np.ndarray]) -> Reduction:
    """Returns the presolved network in which nodes that take the same option in all choices, shape
    (n,), have this option only. All other nodes have every option."""
    agree = (np.stack(choices) == choices[0]).all(axis=0)
    return _with(net, _taken(net, choices) | ~agree[owners(net.option_start)])


def _taken(net: Network, choices: Sequence[np.ndarray]) -> np.ndarray:
    taken = np.zeros(net.option_count, dtype=np.bool_)
    for choice in choices:
        taken[net.option_start[:-1] + choice] = True
    return taken


def _with(net: Network, keep: np.ndarray) -> Reduction:
    return presolve(replace(net, cost=np.where(keep, net.cost, np.inf)))
