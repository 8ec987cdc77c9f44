"""An exact search among the options that may still be better than a solution, if they are few.

With weights on the channels, the problem without loads bounds the problem with loads from below. So
an option whose reduced cost there lifts the bound above the cost of a solution is in no better one
(reduced-cost fixing). The rest is given to HiGHS with its true loads. No weights reach the optimum
if one large choice decides which channel is the larger one. Reduced costs are exact if the network
without loads is narrow (`kiwi.solver.elimination`). So little is left then that HiGHS ends soon.
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
"""Limits of HiGHS: its share of the remaining work, its work by the square of the options and table
cells, and the nodes of its tree times these cells. Better solutions of larger networks are worth
less than the step's uncertainty, and take minutes."""

_STEPS, _MOST_TIMES_LARGER = 30, 8.0
"""Steps of the prices, and how much larger the problem may be before options are left out."""

_Key = tuple[int, int]
_GOLDEN = 0.6180339887498949


def is_worth(problem: Problem, work_left: float) -> bool:
    """Whether so little may be left of a problem that HiGHS can solve it."""
    size = problem.option_count + sum(edge.costs.size for edge in problem.edges)
    return size <= _MOST_TIMES_LARGER * _most_cells(work_left)


def _most_cells(work_left: float) -> float:
    return math.sqrt(_SHARE * work_left / _WORK)


def without_worse(
    rest: Restricted, without_loads: Problem, cost: float
) -> tuple[Restricted, float, int]:
    """The remaining options, without those with which every solution costs more; the bound, and the
    work.

    `without_loads`: the problem at some weights of the channels.
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
    if not all(mask.any() for mask in masks):  # nothing is better
        return rest, cost, work
    return rest.to(masks), bound, work


def solve_rest(
    rest: Restricted, request: Request, best: tuple[int, ...], work_left: float
) -> tuple[tuple[int, ...] | None, float, int, bool]:
    """The best solution of the rest that HiGHS finds, a bound, the work, and whether the clock
    ended it; nothing if the rest is too large."""
    loaded = LoadedNetwork.of(rest.problem)
    net = drop_times(loaded.network)
    if net.size > _most_cells(work_left) or request.seconds_left <= 0:
        return None, -np.inf, 0, False
    own = rest.own(best)
    hint = None if own is None else np.array(own, dtype=np.int64)
    handed = request.handed_to_highs(max(1, _TREE_CELLS // net.size))
    choice, bound, timed_out = solve_network(net, handed, hint, loaded.windows)
    whole = None if choice is None else rest.whole(choice.tolist())
    return whole, bound, round(_WORK * net.size**2), timed_out


class Amounts(NamedTuple):
    """The load of a channel in a window: `cost` (K) by option, `table` as the network's."""

    cost: np.ndarray
    table: np.ndarray


@dataclass(frozen=True, eq=False)
class LoadedNetwork:
    """The network's own costs, and the loads of channels by window, of which the largest counts."""

    network: Network
    windows: Mapping[int, tuple[Amounts, ...]]

    @classmethod
    def of(cls, problem: Problem) -> "LoadedNetwork":
        """The network of a problem, its nodes in their order.

        Classes of options are found in costs that contain each load by a factor of its own:
        options of one class load alike.
        """
        loads = {(x.window, x.channel) for p in (*problem.nodes, *problem.edges) for x in p.loads}
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
    """The amounts of a network's options and pairs for one load."""
    cost, table = np.zeros(net.option_count), np.zeros(len(net.table))
    for number, node in enumerate(problem.nodes):
        for amounts in _of(node.loads, key):
            cost[net.option_slice(number)] += amounts
    known = set()
    between = _by_ends(problem.edges, key)
    for edge, start in enumerate(net.table_start.tolist()):
        # For each line the first option that has it.
        rows, columns = (np.unique(lines, return_index=True)[1] for lines in net.lines(edge))
        if start not in known:  # equal tables are kept once
            known.add(start)
            for load_edge, amounts in between.get(tuple(net.ends[edge].tolist()), ()):
                own = _cells(load_edge, amounts, rows, columns)
                table[start : start + own.size] += own.ravel()
    return Amounts(cost, table)


def _by_ends(
    edges: Sequence[Edge], key: _Key
) -> Mapping[tuple[int, ...], list[tuple[Edge, np.ndarray]]]:
    """The edges with a load, by their nodes, the smaller first, and its amounts."""
    edges_of_ends: dict[tuple[int, ...], list[tuple[Edge, np.ndarray]]] = {}
    for edge in edges:
        for amounts in _of(edge.loads, key):
            ends = min(edge.tail, edge.head), max(edge.tail, edge.head)
            edges_of_ends.setdefault(ends, []).append((edge, amounts))
    return edges_of_ends


def _cells(edge: Edge, amounts: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Amounts of an edge for options of its smaller node by options of the other."""
    if edge.tail < edge.head:
        return amounts[np.ix_(edge.tail_class[rows], edge.head_class[columns])]
    return amounts[np.ix_(edge.tail_class[columns], edge.head_class[rows])].T


def _of(loads: Sequence[Load], key: _Key) -> list[np.ndarray]:
    return [load.amounts for load in loads if (load.window, load.channel) == key]
