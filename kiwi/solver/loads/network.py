"""A problem with loads as a network, and each load as costs of the network's options and pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kiwi.solver.loads.weights import weighted
from kiwi.solver.network import Network, build_network
from kiwi.solver.problem import Edge, Load, Problem

_Key = tuple[int, int]
_GOLDEN = 0.6180339887498949


class Amounts(NamedTuple):
    """What a channel does in a window: `cost` (K) by option, `table` as the network's."""

    cost: np.ndarray
    table: np.ndarray


@dataclass(frozen=True, eq=False)
class LoadedNetwork:
    """What costs by itself, and by window what its channels do, of which the most counts."""

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
            found = _amounts(problem, net, key)
            windows[key[0]] = (*windows.get(key[0], ()), found)
            cost, table = net.cost - times * found.cost, net.table - times * found.table
            net = replace(net, cost=cost, table=table)
        return cls(net, windows)


def _amounts(problem: Problem, net: Network, key: _Key) -> Amounts:
    """What the options and pairs of a network add to one load."""
    cost, table = np.zeros(net.option_count), np.zeros(len(net.table))
    for number, node in enumerate(problem.nodes):
        for amounts in _of(node.loads, key):
            cost[net.option_slice(number)] += amounts
    known = set()
    between = _by_ends(problem.edges, key)
    for edge, start in enumerate(net.table_start.tolist()):
        rows, columns = (_first_options(lines) for lines in net.lines(edge))
        if start not in known:  # equal tables are kept once
            known.add(start)
            for each, amounts in between.get(tuple(net.ends[edge].tolist()), ()):
                own = _cells(each, amounts, rows, columns)
                table[start : start + own.size] += own.ravel()
    return Amounts(cost, table)


def _by_ends(
    edges: Sequence[Edge], key: _Key
) -> Mapping[tuple[int, ...], list[tuple[Edge, np.ndarray]]]:
    """The edges with a load, by their nodes, the smaller first, and its amounts."""
    found: dict[tuple[int, ...], list[tuple[Edge, np.ndarray]]] = {}
    for edge in edges:
        for amounts in _of(edge.loads, key):
            ends = min(edge.tail, edge.head), max(edge.tail, edge.head)
            found.setdefault(ends, []).append((edge, amounts))
    return found


def _cells(edge: Edge, amounts: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Amounts of an edge for options of its smaller node by options of the other."""
    if edge.tail < edge.head:
        return amounts[np.ix_(edge.tail_class[rows], edge.head_class[columns])]
    return amounts[np.ix_(edge.tail_class[columns], edge.head_class[rows])].T


def _of(loads: Sequence[Load], key: _Key) -> list[np.ndarray]:
    return [load.amounts for load in loads if (load.window, load.channel) == key]


def _first_options(lines: np.ndarray) -> np.ndarray:
    """For each line the first option that has it."""
    return np.unique(lines, return_index=True)[1]
