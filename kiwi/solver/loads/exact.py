"""An exact search among the options that may still be in a better solution, if they are few.

With weights on the channels, the problem without loads is a lower bound of the problem with loads.
An option whose reduced cost lifts this bound above the cost of a solution is in no better solution
(reduced-cost fixing). HiGHS gets the remaining options with their true loads. It is needed because
no weights lead to the optimum if one large choice decides which channel has the larger load. If the
network without loads is narrow, reduced costs are exact (`kiwi.solver.elimination`), and so few
options remain that HiGHS ends soon.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kiwi.solver.dual import FIRST_SWEEPS, Dual
from kiwi.solver.loads.restricted import Restricted
from kiwi.solver.loads.weights import weighted
from kiwi.solver.milp import solve_network
from kiwi.solver.network import Network, build_network
from kiwi.solver.order import time_order
from kiwi.solver.presolve.times import drop_times
from kiwi.solver.problem import Edge, Load, Problem
from kiwi.solver.relaxed import Relaxed
from kiwi.solver.request import Request

_SHARE, _WORK, _TREE_CELLS = 0.05, 4.0, 1_500_000
"""The limits of HiGHS: its share of the remaining work, the work that is charged per square of the
number of options and table cells, and the largest number of tree nodes times these cells. A network
with more work than the share is not handed to HiGHS."""

_STEPS, _MOST_TIMES_LARGER = 30, 8.0
"""The number of steps of the prices, and the factor by which a problem may be larger than HiGHS's
limit before options are ruled out. A larger problem is not tried."""

_Key = tuple[int, int]
_GOLDEN = 0.6180339887498949


def is_worth(problem: Problem, work_left: float) -> bool:
    """Whether a problem is small enough that HiGHS may be able to solve its remaining options."""
    size = problem.option_count + sum(edge.costs.size for edge in problem.edges)
    return size <= _MOST_TIMES_LARGER * _most_cells(work_left)


def _most_cells(work_left: float) -> float:
    return math.sqrt(_SHARE * work_left / _WORK)


def without_worse(
    rest: Restricted, without_loads: Problem, cost: float
) -> tuple[Restricted, float, int]:
    """Rules out the options with which every solution costs more than `cost`. Returns the problem
    with the remaining options, a lower bound, and the work.

    - `without_loads`: the problem of `rest` at some weights of the channels.
    """
    order = time_order(without_loads)
    net = drop_times(build_network(without_loads, order))
    dual = Dual(Relaxed(net))
    if not dual.eliminate():
        dual.evaluate(dual.best_prices, FIRST_SWEEPS)
    if len(net.times) or not dual.is_exact:
        dual.improve(_STEPS)
    bound, spare = dual.reduced_costs()
    is_left = bound + spare <= cost + 1e-9 * abs(cost)
    masks = [np.ones(0, dtype=np.bool_)] * len(order)
    for place, node in enumerate(order.tolist()):
        masks[node] = is_left[net.option_slice(place)]
    work = dual.work
    if not all(mask.any() for mask in masks):  # No solution is better.
        return rest, cost, work
    return rest.to(masks), bound, work


def solve_rest(
    rest: Restricted, request: Request, best: tuple[int, ...], work_left: float
) -> tuple[tuple[int, ...] | None, float, int, bool]:
    """Hands the remaining options to HiGHS with their loads.

    - `best`: the best known solution, with which HiGHS starts.

    Returns a solution of the whole problem or None, a lower bound, the work, and whether the clock
    ended HiGHS. If the problem is too large, these are None, -inf, 0 and False.
    """
    loaded = LoadedNetwork.of(rest.problem)
    net = drop_times(loaded.network)
    if net.size > _most_cells(work_left) or request.seconds_left <= 0:
        return None, -np.inf, 0, False
    start = rest.own(best)
    hint = None if start is None else np.array(start, dtype=np.int64)
    handed = request.handed_to_highs(max(1, _TREE_CELLS // net.size))
    choice, bound, timed_out = solve_network(net, handed, hint, loaded.windows)
    whole = None if choice is None else rest.whole(choice.tolist())
    return whole, bound, round(_WORK * net.size**2), timed_out


class Amounts(NamedTuple):
    """The load of a channel in a window: by option (`cost`, shape (K,)), and by cell (`table`, laid
    out as `Network.table`)."""

    cost: np.ndarray
    table: np.ndarray


@dataclass(frozen=True, eq=False)
class LoadedNetwork:
    """A network with loads.

    - `network`: the network with the costs that are not loads.
    - `windows`: for each window, the loads of its channels. The largest counts.
    """

    network: Network
    windows: Mapping[int, tuple[Amounts, ...]]

    @classmethod
    def of(cls, problem: Problem) -> "LoadedNetwork":
        """Returns the network of a problem, with nodes in the problem's order.

        The classes of options are formed from costs in which each load has a different factor, so
        that options of one class have equal loads.
        """
        loads = {
            (x.window, x.channel) for part in (*problem.nodes, *problem.edges) for x in part.loads
        }
        factor = {key: 1.0 + _GOLDEN * (k + 1) % 1.0 for k, key in enumerate(sorted(loads))}
        net = build_network(weighted(problem, lambda x, _: factor[x.window, x.channel]))
        windows: dict[int, tuple[Amounts, ...]] = {}
        for key, times in factor.items():
            load = _amounts(problem, net, key)
            windows[key[0]] = (*windows.get(key[0], ()), load)
            cost, table = net.cost - times * load.cost, net.table - times * load.table
            net = replace(net, cost=cost, table=table)
        return cls(net, windows)


def _amounts(problem: Problem, net: Network, key: _Key) -> Amounts:
    """Returns the amounts of one window and channel by option and by cell of the network."""
    cost, table = np.zeros(net.option_count), np.zeros(len(net.table))
    for number, node in enumerate(problem.nodes):
        for amounts in _of(node.loads, key):
            cost[net.option_slice(number)] += amounts
    known = set()
    between = _by_ends(problem.edges, key)
    for edge, start in enumerate(net.table_start.tolist()):
        # The first option of each line.
        rows, columns = (np.unique(lines, return_index=True)[1] for lines in net.lines(edge))
        if start not in known:  # Equal tables are stored once.
            known.add(start)
            for load_edge, amounts in between.get(tuple(net.ends[edge].tolist()), ()):
                cell_amounts = _cells(load_edge, amounts, rows, columns)
                table[start : start + cell_amounts.size] += cell_amounts.ravel()
    return Amounts(cost, table)


def _by_ends(
    edges: Sequence[Edge], key: _Key
) -> Mapping[tuple[int, ...], list[tuple[Edge, np.ndarray]]]:
    """Returns the edges with a load of one window and channel, and its amounts, by the nodes of the
    edge, the smaller first."""
    edges_of_ends: dict[tuple[int, ...], list[tuple[Edge, np.ndarray]]] = {}
    for edge in edges:
        for amounts in _of(edge.loads, key):
            ends = min(edge.tail, edge.head), max(edge.tail, edge.head)
            edges_of_ends.setdefault(ends, []).append((edge, amounts))
    return edges_of_ends


def _cells(edge: Edge, amounts: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns the amounts of an edge for some options. `rows`: options of the smaller node;
    `columns`: options of the other node."""
    if edge.tail < edge.head:
        return amounts[np.ix_(edge.tail_class[rows], edge.head_class[columns])]
    return amounts[np.ix_(edge.tail_class[columns], edge.head_class[rows])].T


def _of(loads: Sequence[Load], key: _Key) -> list[np.ndarray]:
    return [load.amounts for load in loads if (load.window, load.channel) == key]
