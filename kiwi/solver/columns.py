"""A problem as arrays, from which the referee prices solutions. They are made once and used often.

Costs, tables and loads are concatenated in flat arrays, equal arrays once. A solution is one index
into these for each node, each edge and each load. No solver uses this module, and it uses none.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kiwi.interval import Interval
from kiwi.solver.problem import Edge, Node, Problem

MOST_KNOWN = 8
"""The number of problems whose columns are kept. A search prices by few at the same time."""


@dataclass(frozen=True, eq=False)
class Stack:
    """Concatenated arrays.

    - `values`: those of all distinct arrays. `first`: the beginning of each array.
    """

    values: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, arrays: Iterable[np.ndarray], dtype: type) -> "Stack":
        """The stack of some arrays. Arrays that share their memory, as the tables of equal layers
        do, are stored once."""
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

    - `keys`: window and channel of each, in the order of their first load.
    - `part`: for each load its node, or the number of nodes plus its edge. `key`: its place in
      `keys`.
    """

    keys: tuple[tuple[int, int], ...]
    part: np.ndarray
    key: np.ndarray
    amounts: Stack

    @classmethod
    def of(cls, parts: Sequence[Node | Edge]) -> "Loads":
        """The loads of the nodes, and then of the edges."""
        keys: dict[tuple[int, int], int] = {}
        part: list[int] = []
        key: list[int] = []
        amounts: list[np.ndarray] = []
        for number, own in enumerate(parts):
            for load in own.loads:
                part.append(number)
                key.append(keys.setdefault((load.window, load.channel), len(keys)))
                amounts.append(load.amounts)
        numbers = (np.array(part, dtype=np.int64), np.array(key, dtype=np.int64))
        return cls(tuple(keys), *numbers, Stack.of(amounts, np.float64))

    def totals(self, cell: np.ndarray) -> dict[tuple[int, int], float]:
        """The loads by window and channel, if each node and edge takes one cell."""
        taken = self.amounts.values[self.amounts.first + cell[self.part]]
        totals = np.bincount(self.key, weights=taken, minlength=len(self.keys))
        return dict(zip(self.keys, totals.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Columns:
    """The arrays of a problem's nodes and edges, without the limits.

    - `sizes`: the number of options of each node.
    - `tail`, `head`: the nodes of each edge. `width`: the columns of its table.
    - `tail_class`, `head_class`: the lines of its table by option of either node.
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
        """The columns of a problem. Problems with the same nodes and edges share them."""
        key = id(problem.nodes), id(problem.edges)
        columns = _KNOWN.get(key)
        if columns is None:
            columns = cls._made(problem.nodes, problem.edges)
            if len(_KNOWN) >= MOST_KNOWN:
                _KNOWN.popitem(last=False)
            _KNOWN[key] = columns  # with the nodes and edges, whose places nothing else takes then
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
        """The positions of a choice (n,) in the costs of each node, then of each edge."""
        rows = self.tail_class.values[self.tail_class.first + choice[self.tail]]
        columns = self.head_class.values[self.head_class.first + choice[self.head]]
        return np.concatenate([choice, rows * self.width + columns])

    def amounts(self, cells: np.ndarray) -> np.ndarray:
        """The cost of each node, then of each edge."""
        count = len(self.sizes)
        own = self.costs.values[self.costs.first + cells[:count]]
        between = self.tables.values[self.tables.first + cells[count:]]
        return np.concatenate([own, between])

    def curve_bytes(self, usages: Iterable[Sequence[Interval]], horizon: int) -> np.ndarray:
        """The bytes that some options of the nodes hold at each time; int64, (horizon,)."""
        held = [self._intervals(usage) for usage in usages if usage]
        change = np.zeros(horizon + 1, dtype=np.int64)
        if held:
            start, end, held_bytes = np.concatenate(held, axis=1)
            np.add.at(change, start, held_bytes)
            np.subtract.at(change, end, held_bytes)
        return np.cumsum(change[:horizon])

    def _intervals(self, usage: Sequence[Interval]) -> np.ndarray:
        """Starts, ends and bytes (3, intervals); `usage` is a node's, which lives as long."""
        key = id(usage)
        if key not in self._held:
            rows = [(interval.start, interval.end, interval.bytes) for interval in usage]
            self._held[key] = np.array(rows, dtype=np.int64).T
        return self._held[key]


_KNOWN: OrderedDict[tuple[int, int], Columns] = OrderedDict()
