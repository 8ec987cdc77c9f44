"""What may still be better than a solution, solved exactly with its loads where it is small.

At weights of the channels the problem without loads bounds that with them from below. So an option
whose reduced cost there lifts the bound above the cost of a solution is in no better one
(reduced-cost fixing), and what is left is given to HiGHS with the loads as they are: no weights
reach the optimum where one large choice decides which channel is the larger one.
"""

import math

import numpy as np

from kiwi.solver.dual import Dual
from kiwi.solver.engine import FIRST_SWEEPS
from kiwi.solver.loads.network import LoadedNetwork
from kiwi.solver.loads.restricted import Restricted
from kiwi.solver.milp import solve_network
from kiwi.solver.network import build_network
from kiwi.solver.order import time_order
from kiwi.solver.parts import MILP_SHARE, cells
from kiwi.solver.presolve.times import drop_times
from kiwi.solver.problem import Problem
from kiwi.solver.relaxed import Relaxed
from kiwi.solver.request import Request

_SHARE, _WORK, _TREE_CELLS = 0.25, 0.7, 1_500_000
"""Of the work that is left what HiGHS may take, and what it counts as by the square of the options
and table cells: 20 to 80 s where there are 110,000 to 130,000. It visits nodes of its tree as long
as these times the cells are fewer than the last."""

_STEPS, _MOST_TIMES_LARGER = 30, 2.0
"""Steps of the prices; and how much more there may be before options are left out."""


def is_worth(problem: Problem, work_left: float) -> bool:
    """Whether so little may be left of a problem that HiGHS can solve it."""
    size = problem.option_count + sum(edge.costs.size for edge in problem.edges)
    return size <= _MOST_TIMES_LARGER * _most_cells(work_left)


def _most_cells(work_left: float) -> float:
    return math.sqrt(_SHARE * work_left / _WORK)


def without_worse(
    rest: Restricted, without_loads: Problem, cost: float
) -> tuple[Restricted, float, int]:
    """What is left of the options once those are left out with which every solution costs more;
    the bound, and the work.

    `without_loads`: the rest at some weights of the channels.
    """
    order = time_order(without_loads)
    net = drop_times(build_network(without_loads, order))
    dual = Dual(Relaxed(net))
    dual.evaluate(dual.best_prices, FIRST_SWEEPS)
    dual.improve(_STEPS)
    bound, spare = dual.reduced_costs()
    is_left = bound + spare <= cost + 1e-9 * abs(cost)
    masks = [np.ones(0, dtype=np.bool_)] * len(order)
    for place, node in enumerate(order.tolist()):
        masks[node] = is_left[net.option_slice(place)]
    work = dual.work
    if not all(mask.any() for mask in masks):  # nothing is better
        return rest, cost, work
    return rest.to(masks), bound, work


def solve_rest(
    rest: Restricted, request: Request, best: tuple[int, ...], work_left: float
) -> tuple[tuple[int, ...] | None, float, int, bool]:
    """The best solution of what is left that HiGHS finds, a bound, the work, and whether the clock
    ended it; nothing of all that where it is too large."""
    loaded = LoadedNetwork.of(rest.problem)
    net = drop_times(loaded.network)
    size = cells(net)
    if size > _most_cells(work_left) or request.seconds_left <= 0:
        return None, -np.inf, 0, False
    own = rest.own(best)
    hint = None if own is None else np.array(own, dtype=np.int64)
    handed = request.handed_to("highs", MILP_SHARE, max(1, _TREE_CELLS // size))
    choice, bound, timed_out = solve_network(net, handed, hint, loaded.windows)
    found = None if choice is None else rest.whole(choice.tolist())
    return found, bound, round(_WORK * size**2), timed_out
