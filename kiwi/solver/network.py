"""A `Problem` as flat arrays, for the compiled inner loops.

The conversion makes four exact reductions:

- Parallel edges are added up.
- Edges with equal tables share one table: a model of equal layers has the tables of one layer.
- Options whose rows (columns) of an edge's table are equal form one *class* of that edge, and the
  table has one cell for each pair of classes. Two options that differ only in residency have the
  same resharding costs, so tables shrink by the square of the number of residencies.
- Only points of time at which some interval begins are kept, since memory use does not grow at any
  other.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kiwi.solver.compiled import inner, kernel
from kiwi.solver.edge_tables import compressed_edges, concatenate, offsets
from kiwi.solver.loops.arrays import Arrays
from kiwi.solver.order import Uses, flat_uses
from kiwi.solver.problem import Edge, Problem

NO_LIMIT_BYTES = np.iinfo(np.int64).max // 4
"""The limit of a network without a memory limit. Sums of it with other bytes do not overflow."""


@dataclass(frozen=True, eq=False)
class Network(Arrays):
    """Nodes `i`, options `o` in one flat numbering, edges `e`, kept points of time `t`.

    Edge e has two ends: h = 2e, where its table has rows, and h = 2e + 1, where it has columns. h ^
    1 is the other end.

    - `option_start` (n+1): the options of node i are option_start[i] .. option_start[i+1].
    - `cost` (K): the cost of each option, infinite if forbidden.
    - `use_start` (K+1): the intervals of option o are use_start[o] .. use_start[o+1].
    - `use_begin`, `use_end`, `use_bytes` (I): the intervals, half-open, as indices in `times`.
    - `times` (T): the kept points of time, in the problem's numbering.
    - `limit_bytes`: the memory limit; `NO_LIMIT_BYTES` if there is none.
    - `end_node` (2E): the node at each end. The smaller one is at 2e.
    - `line_start` (2E+1), `line`: for each end, the class of each option of its node: the row or
      column in the table. The lines of end h begin at line_start[h].
    - `line_count` (2E): the number of classes at each end.
    - `step` (2E): the distance in `table` between neighbouring lines of an end.
    - `table_start` (E): the index in `table` at which the table of each edge begins.
    - `table`: the costs of all distinct tables by (row, column), row-major. Equal tables, such as
      the tables of repeated layers, are stored once.
    - `near_start` (n+1), `near_end`: the ends at each node, in the order of the node at the other
      end.
    """

    option_start: np.ndarray
    cost: np.ndarray
    use_start: np.ndarray
    use_begin: np.ndarray
    use_end: np.ndarray
    use_bytes: np.ndarray
    times: np.ndarray
    limit_bytes: int
    end_node: np.ndarray
    line_start: np.ndarray
    line: np.ndarray
    line_count: np.ndarray
    step: np.ndarray
    table_start: np.ndarray
    table: np.ndarray
    near_start: np.ndarray
    near_end: np.ndarray

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self.option_start) - 1

    @property
    def edge_count(self) -> int:
        """Number of edges after merging."""
        return len(self.table_start)

    @property
    def option_count(self) -> int:
        """Number of options of all nodes."""
        return len(self.cost)

    @property
    def cell_count(self) -> int:
        """Number of cells in the tables of all edges; a shared table counts for each edge."""
        return int((self.line_count[::2] * self.line_count[1::2]).sum())

    @property
    def size(self) -> int:
        """Number of options plus table cells, the unit of work."""
        return self.option_count + self.cell_count

    def option_slice(self, node: int) -> slice:
        """Returns the slice of a node's options in the flat numbering."""
        return slice(int(self.option_start[node]), int(self.option_start[node + 1]))

    @property
    def ends(self) -> np.ndarray:
        """The nodes of each edge, the smaller first; (E, 2)."""
        return self.end_node.reshape(-1, 2)

    def edge_table(self, edge: int) -> np.ndarray:
        """Returns the costs of an edge by (row, column)."""
        rows, columns = self.line_count[2 * edge : 2 * edge + 2]
        first = self.table_start[edge]
        return self.table[first : first + rows * columns].reshape(rows, columns)

    def lines(self, edge: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the row of each option of an edge's first node, and the column of each option of
        its second node."""
        first, middle, last = self.line_start[2 * edge : 2 * edge + 3]
        return self.line[first:middle], self.line[middle:last]

    def over_edges(self, reduce: np.ufunc, table: np.ndarray) -> np.ndarray:
        """Returns `reduce` over the cells of each edge, shape (E,). `table` is laid out as
        `Network.table`."""
        starts, table_of_edge = np.unique(self.table_start, return_inverse=True)
        return reduce.reduceat(table, starts)[table_of_edge] if len(starts) else np.zeros(0)


@inner
def cell(net: Network, end, mine, theirs):
    """Returns the index in `table` of the pair of option `mine` at `end` and option `theirs` at the
    other end."""
    mine = net.line[net.line_start[end] + mine]
    theirs = net.line[net.line_start[end ^ 1] + theirs]
    return net.table_start[end >> 1] + mine * net.step[end] + theirs * net.step[end ^ 1]


@inner
def add_line(net: Network, end, theirs, cost):
    """Adds to `cost`, for each option at `end`, the cost of its pair with option `theirs` at the
    other end."""
    fixed = net.line[net.line_start[end ^ 1] + theirs] * net.step[end ^ 1]
    base, first, step = net.table_start[end >> 1] + fixed, net.line_start[end], net.step[end]
    for o in range(len(cost)):
        cost[o] += net.table[base + net.line[first + o] * step]


@kernel
def widest(net: Network):
    """Returns the largest number of options of a node, at least 1. No table has more lines."""
    most = 1
    for i in range(len(net.option_start) - 1):
        most = max(most, net.option_start[i + 1] - net.option_start[i])
    return most


def build_network(problem: Problem, order: np.ndarray | None = None) -> Network:
    """Returns `problem` as a network. Costs and feasibility of every solution stay the same.

    `order` (n,): for each node k of the network, the node of the problem; by default k.
    """
    order = np.arange(len(problem.nodes)) if order is None else order
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    sizes = np.array([problem.nodes[i].costs.size for i in order], dtype=np.int64)
    option_start = offsets(sizes)
    cost = concatenate([problem.nodes[i].costs for i in order], np.float64)
    ends, edges = _merged_edges(problem.edges, rank.tolist())
    lines = [side for edge in edges for side in (edge.rows, edge.columns)]
    return Network(
        option_start=option_start,
        cost=cost,
        **_memory_arrays(problem, flat_uses(problem, order), int(option_start[-1])),
        **compressed_edges(
            sizes, ends, [edge.table for edge in edges], concatenate(lines, np.int64)
        ),
    )


class _Lines(NamedTuple):
    """An edge's table, the row of each option of the first node, and the column of each option of
    the second node."""

    table: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


def _merged_edges(edges: tuple[Edge, ...], rank: list[int]) -> tuple[np.ndarray, list[_Lines]]:
    merged: dict[tuple[int, int], _Lines] = {}
    for edge in edges:
        lines = _Lines(edge.costs, edge.tail_class, edge.head_class)
        pair = (rank[edge.tail], rank[edge.head])
        if pair[0] > pair[1]:
            pair = (pair[1], pair[0])
            lines = _Lines(lines.table.T, lines.columns, lines.rows)
        merged[pair] = _sum(merged[pair], lines) if pair in merged else lines
    ends = np.array(list(merged), dtype=np.int64).reshape(-1, 2)
    return ends, list(merged.values())


def _sum(one: _Lines, other: _Lines) -> _Lines:
    dense = [lines.table[np.ix_(lines.rows, lines.columns)] for lines in (one, other)]
    total = dense[0] + dense[1]
    return _Lines(total, np.arange(total.shape[0]), np.arange(total.shape[1]))


def _memory_arrays(problem: Problem, flat: Uses, option_count: int) -> dict[str, Any]:
    limit_bytes = NO_LIMIT_BYTES
    if problem.limit_bytes is not None:
        limit_bytes = min(problem.limit_bytes, NO_LIMIT_BYTES)
    uses, owner = flat if limit_bytes < NO_LIMIT_BYTES else (flat[0][:0], flat[1][:0])
    times = np.unique(uses[:, 0])
    return {
        "use_start": offsets(np.bincount(owner, minlength=option_count)),
        "use_begin": np.searchsorted(times, uses[:, 0]),
        "use_end": np.searchsorted(times, uses[:, 1]),
        "use_bytes": uses[:, 2].copy(),
        "times": times,
        "limit_bytes": int(limit_bytes),
    }
