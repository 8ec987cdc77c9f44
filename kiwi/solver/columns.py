"""A problem as arrays, from which the referee prices solutions.

Costs, tables and loads are concatenated in flat arrays; an array that occurs several times is
stored once. A solution is one index into the flat arrays for each node, edge and load. No solver
uses this module, and this module uses no solver.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kiwi.interval import Interval
from kiwi.solver.problem import Edge, Node, Problem

MOST_KNOWN = 8
"""The number of problems whose columns are cached. The problem used longest ago is dropped
first."""


@dataclass(frozen=True, eq=False)
class Stack:
    """Concatenated arrays.

    - `values`: the values of all distinct arrays, flat.
    - `first`: the index in `values` at which each array begins.
    """

    values: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, arrays: Iterable[np.ndarray], dtype: type) -> "Stack":
        """Returns the stack of some arrays. Arrays that share their memory (the tables of equal
        layers do) are stored once."""
        places: dict[tuple[object, ...], int] = {}
        pieces: list[np.ndarray] = []
        first: list[int] = []
        size = 0
        for array in arrays:
            interface = array.__array_interface__
            key = interface["data"][0], interface["shape"], interface["strides"]
            if key not in places:
                places[key] = size
                pieces.append(array.ravel())
                size += array.size
            first.append(places[key])
        values = np.concatenate(pieces).astype(dtype) if pieces else np.zeros(0, dtype=dtype)
        return cls(values, np.array(first, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Loads:
    """The loads of all nodes and edges.

    - `keys`: the distinct pairs of window and channel, in the order of their first load.
    - `part`: for each load, the index of its node, or the number of nodes plus the index of its
      edge.
    - `key`: for each load, the index of its window and channel in `keys`.
    - `amounts`: the amounts of each load.
    """

    keys: tuple[tuple[int, int], ...]
    part: np.ndarray
    key: np.ndarray
    amounts: Stack

    @classmethod
    def of(cls, parts: Sequence[Node | Edge]) -> "Loads":
        """Returns the loads of `parts`: all nodes, then all edges."""
        keys: dict[tuple[int, int], int] = {}
        part: list[int] = []
        key: list[int] = []
        amounts: list[np.ndarray] = []
        for number, owner in enumerate(parts):
            for load in owner.loads:
                part.append(number)
                key.append(keys.setdefault((load.window, load.channel), len(keys)))
                amounts.append(load.amounts)
        numbers = (np.array(part, dtype=np.int64), np.array(key, dtype=np.int64))
        return cls(tuple(keys), *numbers, Stack.of(amounts, np.float64))

    def totals(self, cell: np.ndarray) -> dict[tuple[int, int], float]:
        """Returns the total load by window and channel. `cell`: the cell of each node and edge, see
        `Columns.cells`."""
        taken_amounts = self.amounts.values[self.amounts.first + cell[self.part]]
        totals = np.bincount(self.key, weights=taken_amounts, minlength=len(self.keys))
        return dict(zip(self.keys, totals.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Columns:
    """The arrays of a problem's nodes and edges, without the limits.

    - `sizes`: the number of options of each node. `costs`: the costs of the options.
    - `tail`, `head`: the nodes of each edge. `tables`: the costs of each edge. `width`: the number
      of columns of its table.
    - `tail_class`, `head_class`: the row of each option of an edge's tail, and the column of each
      option of its head.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    sizes: np.ndarray
    costs: Stack
    tail: np.ndarray
    head: np.ndarray
    width: np.ndarray
    tail_class: Stack
    head_class: Stack
    tables: Stack
    loads: Loads
    _held: dict[int, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem) -> "Columns":
        """Returns the columns of a problem. Problems with the same tuples of nodes and edges share
        them."""
        key = id(problem.nodes), id(problem.edges)
        columns = _KNOWN.get(key)
        if columns is None:
            columns = cls._made(problem.nodes, problem.edges)
            if len(_KNOWN) >= MOST_KNOWN:
                _KNOWN.popitem(last=False)
            _KNOWN[key] = columns  # It holds both tuples, so that no other object gets their ids.
        else:
            _KNOWN.move_to_end(key)
        return columns

    @classmethod
    def _made(cls, nodes: tuple[Node, ...], edges: tuple[Edge, ...]) -> "Columns":
        return cls(
            nodes=nodes,
            edges=edges,
            sizes=np.array([node.costs.size for node in nodes], dtype=np.int64),
            costs=Stack.of((node.costs for node in nodes), np.float64),
            tail=np.array([edge.tail for edge in edges], dtype=np.int64),
            head=np.array([edge.head for edge in edges], dtype=np.int64),
            width=np.array([edge.costs.shape[1] for edge in edges], dtype=np.int64),
            tail_class=Stack.of((edge.tail_class for edge in edges), np.int64),
            head_class=Stack.of((edge.head_class for edge in edges), np.int64),
            tables=Stack.of((edge.costs for edge in edges), np.float64),
            loads=Loads.of((*nodes, *edges)),
        )

    def cells(self, choice: np.ndarray) -> np.ndarray:
        """Returns the index of a choice, shape (n,), in the flat costs of each node, then of each
        edge."""
        rows = self.tail_class.values[self.tail_class.first + choice[self.tail]]
        columns = self.head_class.values[self.head_class.first + choice[self.head]]
        return np.concatenate([choice, rows * self.width + columns])

    def amounts(self, cells: np.ndarray) -> np.ndarray:
        """Returns the cost of each node, then of each edge. `cells`: see the method of that
        name."""
        count = len(self.sizes)
        node_costs = self.costs.values[self.costs.first + cells[:count]]
        edge_costs = self.tables.values[self.tables.first + cells[count:]]
        return np.concatenate([node_costs, edge_costs])

    def curve_bytes(self, usages: Iterable[Sequence[Interval]], horizon: int) -> np.ndarray:
        """Returns the bytes that some options hold together at each time, int64 of shape
        (horizon,). `usages`: the intervals of each option."""
        held = [self._intervals(usage) for usage in usages if usage]
        change = np.zeros(horizon + 1, dtype=np.int64)
        if held:
            start, end, held_bytes = np.concatenate(held, axis=1)
            np.add.at(change, start, held_bytes)
            np.subtract.at(change, end, held_bytes)
        return np.cumsum(change[:horizon])

    def _intervals(self, usage: Sequence[Interval]) -> np.ndarray:
        """Returns starts, ends and bytes, shape (3, intervals). The result is cached by the id of
        `usage`, which is a node's and lives as long as the node."""
        key = id(usage)
        if key not in self._held:
            rows = [(interval.start, interval.end, interval.bytes) for interval in usage]
            self._held[key] = np.array(rows, dtype=np.int64).T
        return self._held[key]


_KNOWN: OrderedDict[tuple[int, int], Columns] = OrderedDict()
