"""A `Problem` as flat arrays: what the compiled inner loops read.

Four exact reductions happen on the way:

- parallel edges are added up;
- edges with equal tables share one: a model of equal layers has the tables of one layer;
- options whose rows (columns) of an edge's table are equal form one *class* of that edge, and the
  table is kept once for each pair of classes: two options that differ only in residency cost the
  same resharding, so tables shrink by the square of the number of residencies;
- of the points of time only those are kept that can bind: the last before some interval ends, at
  which the largest options together exceed the limit.
"""

from typing import Any, NamedTuple

import numba
import numpy as np

from kiwi.solver.edge_tables import compressed_edges, concatenate, distinct_arrays, offsets
from kiwi.solver.order import Uses, flat_uses
from kiwi.solver.problem import Edge, Problem

NO_LIMIT_BYTES = np.iinfo(np.int64).max // 4


class Network(NamedTuple):
    """Nodes `i`, options in one flat numbering, edges `e`, kept points of time `t`.

    **Attributes:**

    - `option_start` (n+1): options of node i are option_start[i] .. option_start[i+1].
    - `cost` (K): cost of each option, infinite where forbidden.
    - `use_start` (K+1), `use_begin`, `use_end`, `use_bytes` (I): intervals of each option, in
      indices of `times`.
    - `times` (T): the original points of time that were kept.
    - `limit_bytes`: `NO_LIMIT_BYTES` where there is none.
    - `tail`, `head` (E): the nodes of each edge, tail < head.
    - `row_start` (E+1), `row_class`: class of each option of the tail; likewise `col_*` for the
      head.
    - `row_count`, `col_count` (E): the numbers of classes.
    - `table_start` (E), `table`: where each edge's costs by (row class, column class) begin,
      row-major. Equal tables, such as those of repeated layers, are kept once.
    - `near_start` (n+1), `near_edge`: the edges of each node, by the other node's index.

    A named tuple, because that is what numba takes apart by itself.
    """

    option_start: np.ndarray
    cost: np.ndarray
    use_start: np.ndarray
    use_begin: np.ndarray
    use_end: np.ndarray
    use_bytes: np.ndarray
    times: np.ndarray
    limit_bytes: int
    tail: np.ndarray
    head: np.ndarray
    row_start: np.ndarray
    row_class: np.ndarray
    row_count: np.ndarray
    col_start: np.ndarray
    col_class: np.ndarray
    col_count: np.ndarray
    table_start: np.ndarray
    table: np.ndarray
    near_start: np.ndarray
    near_edge: np.ndarray

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self.option_start) - 1

    @property
    def edge_count(self) -> int:
        """Number of edges after merging."""
        return len(self.tail)

    @property
    def option_count(self) -> int:
        """Number of options of all nodes."""
        return len(self.cost)

    @property
    def cell_count(self) -> int:
        """Number of costs in the tables of all edges, shared ones counted each time."""
        return int((self.row_count * self.col_count).sum())

    def option_slice(self, node: int) -> slice:
        """The flat options of a node."""
        return slice(int(self.option_start[node]), int(self.option_start[node + 1]))

    def edge_table(self, edge: int) -> np.ndarray:
        """Costs of an edge by (row class, column class)."""
        first, shape = self.table_start[edge], (self.row_count[edge], self.col_count[edge])
        return self.table[first : first + shape[0] * shape[1]].reshape(shape)

    def over_edges(self, reduce: np.ufunc, table: np.ndarray) -> np.ndarray:
        """`reduce` over each edge's cells of `table`, which is laid out as this one's; (E,)."""
        starts, which = np.unique(self.table_start, return_inverse=True)
        return reduce.reduceat(table, starts)[which] if len(starts) else np.zeros(0)

    def classes(self, edge: int) -> tuple[np.ndarray, np.ndarray]:
        """Row class of each option of the tail, column class of each option of the head."""
        return (
            self.row_class[self.row_start[edge] : self.row_start[edge + 1]],
            self.col_class[self.col_start[edge] : self.col_start[edge + 1]],
        )


def build_network(problem: Problem, order: np.ndarray | None = None) -> Network:
    """Flattens `problem`. Exact: costs and feasibility of every solution are kept.

    `order` (n,): the problem's node that becomes the k-th; by default the k-th.
    """
    order = np.arange(len(problem.nodes)) if order is None else order
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    sizes = np.array([problem.nodes[i].costs.size for i in order], dtype=np.int64)
    option_start = offsets(sizes)
    cost = concatenate([problem.nodes[i].costs for i in order], np.float64)
    ends, tables = _merged_edges(problem.edges, rank.tolist())
    return Network(
        option_start=option_start,
        cost=cost,
        **_memory_arrays(problem, flat_uses(problem, order), option_start),
        **_edge_arrays(ends, tables, sizes),
    )


class _Lines(NamedTuple):
    """An edge's table, and for each option of either node its line."""

    table: np.ndarray
    rows: np.ndarray
    columns: np.ndarray


def _merged_edges(edges: tuple[Edge, ...], rank: list[int]) -> tuple[np.ndarray, list[_Lines]]:
    merged: dict[tuple[int, int], _Lines] = {}
    for edge in edges:
        lines = _lines(edge)
        pair = (rank[edge.tail], rank[edge.head])
        if pair[0] > pair[1]:
            pair = (pair[1], pair[0])
            lines = _Lines(lines.table.T, lines.columns, lines.rows)
        merged[pair] = _sum(merged[pair], lines) if pair in merged else lines
    ends = np.array(list(merged), dtype=np.int64).reshape(-1, 2)
    return ends, list(merged.values())


def _lines(edge: Edge) -> _Lines:
    rows, columns = edge.tail_class, edge.head_class
    return _Lines(
        edge.costs,
        np.arange(edge.costs.shape[0]) if rows is None else np.asarray(rows, dtype=np.int64),
        np.arange(edge.costs.shape[1]) if columns is None else np.asarray(columns, dtype=np.int64),
    )


def _sum(one: _Lines, other: _Lines) -> _Lines:
    dense = [lines.table[np.ix_(lines.rows, lines.columns)] for lines in (one, other)]
    total = dense[0] + dense[1]
    return _Lines(total, np.arange(total.shape[0]), np.arange(total.shape[1]))


def _edge_arrays(ends: np.ndarray, edges: list[_Lines], sizes: np.ndarray) -> dict[str, Any]:
    shapes = np.array([lines.table.shape for lines in edges], dtype=np.int64).reshape(-1, 2)
    tables, table_of = distinct_arrays([lines.table for lines in edges])
    starts = offsets(np.array([table.size for table in tables], dtype=np.int64))
    return compressed_edges(
        sizes,
        ends,
        shapes,
        concatenate([table.ravel() for table in tables], np.float64),
        starts[table_of],
        concatenate([lines.rows for lines in edges], np.int64),
        concatenate([lines.columns for lines in edges], np.int64),
    )


def _memory_arrays(problem: Problem, flat: Uses, option_start: np.ndarray) -> dict[str, Any]:
    limit_bytes = NO_LIMIT_BYTES
    if problem.limit_bytes is not None:
        limit_bytes = min(problem.limit_bytes, NO_LIMIT_BYTES)
    uses, owner = flat
    times = _binding_times(uses, owner, option_start, problem.horizon, limit_bytes)
    begin = np.searchsorted(times, uses[:, 0])
    end = np.searchsorted(times, uses[:, 1])
    seen = begin < end
    return {
        "use_start": offsets(np.bincount(owner[seen], minlength=int(option_start[-1]))),
        "use_begin": begin[seen],
        "use_end": end[seen],
        "use_bytes": uses[seen, 2].copy(),
        "times": times,
        "limit_bytes": int(limit_bytes),
    }


def _binding_times(
    uses: np.ndarray,
    owner: np.ndarray,
    option_start: np.ndarray,
    horizon: int,
    limit_bytes: int,
) -> np.ndarray:
    """The times that can bind. Time t is covered by its neighbour t + 1 unless an interval ends
    there, and by t - 1 unless one starts at t: of each run of starts followed by ends, the last
    start covers all."""
    starts_at = np.zeros(horizon + 1, dtype=bool)
    ends_at = np.zeros(horizon + 1, dtype=bool)
    starts_at[uses[:, 0]] = True
    ends_at[uses[:, 1]] = True
    times = []
    last_start = -1
    for t in np.flatnonzero(starts_at | ends_at):
        if ends_at[t] and last_start >= 0:
            times.append(last_start)
            last_start = -1
        if starts_at[t]:
            last_start = t
    kept = np.array(times, dtype=np.int64)
    if limit_bytes >= NO_LIMIT_BYTES:
        return kept[:0]
    begin, end = np.searchsorted(kept, uses[:, 0]), np.searchsorted(kept, uses[:, 1])
    most = _largest_use(begin, end, uses[:, 2].copy(), owner, option_start, len(kept))
    return kept[most > limit_bytes]


@numba.njit(cache=True)
def _largest_use(begin, end, size, owner, option_start, time_count):
    """Upper bound on the bytes held at each time: of every node, each moment's largest option."""
    total = np.zeros(time_count, dtype=np.float64)
    best = np.zeros(time_count, dtype=np.int64)
    mine = np.zeros(time_count, dtype=np.int64)
    use = 0
    for i in range(len(option_start) - 1):
        low, high = time_count, 0
        for o in range(option_start[i], option_start[i + 1]):
            first = use
            while use < len(owner) and owner[use] == o:
                low, high = min(low, begin[use]), max(high, end[use])
                mine[begin[use] : end[use]] += size[use]
                use += 1
            for u in range(first, use):
                for t in range(begin[u], end[u]):
                    best[t] = max(best[t], mine[t])
            for u in range(first, use):
                mine[begin[u] : end[u]] = 0
        for t in range(low, high):
            total[t] += best[t]
            best[t] = 0
    return total
