"""Tables of edges, compressed: equal lines of a table are kept once, and equal tables too.

Two options that differ only in residency cost the same resharding, and equal layers reshard at
equal costs, so that the tables of a deep model take the memory of one layer's.
"""

from typing import Any, NamedTuple

import numba
import numpy as np


def offsets(sizes: np.ndarray) -> np.ndarray:
    """0 and the running sums of `sizes`."""
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def concatenate(pieces: list[np.ndarray], dtype: type) -> np.ndarray:
    """The pieces as one array of `dtype`; none make an empty one."""
    if not pieces:
        return np.zeros(0, dtype=dtype)
    return np.concatenate(pieces).astype(dtype, copy=False)


def distinct_arrays(arrays: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """The arrays that are views of different memory, and for each array which of them it is."""
    index: dict[object, int] = {}
    found: list[np.ndarray] = []
    which = np.empty(len(arrays), dtype=np.int64)
    for k, array in enumerate(arrays):
        key = (array.__array_interface__["data"][0], array.shape, array.strides)
        if key not in index:
            index[key] = len(found)
            found.append(array)
        which[k] = index[key]
    return found, which


def compressed_edges(
    sizes: np.ndarray,
    ends: np.ndarray,
    shapes: np.ndarray,
    cells: np.ndarray,
    cell_start: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
) -> dict[str, Any]:
    """The edge arrays of a `Network`.

    **Arguments:**

    - `sizes` (n): numbers of options of the nodes.
    - `ends` (E, 2): the nodes of each edge, the smaller first; no pair twice.
    - `shapes` (E, 2), `cells`, `cell_start` (E): the edges' tables, row-major, and where in
      `cells` each begins.
    - `rows`, `columns`: for each option of the first (second) node its line in that table.
    """
    tail, head = ends[:, 0].copy(), ends[:, 1].copy()
    used = (
        _used_lines(rows, sizes[tail], shapes[:, 0]),
        _used_lines(columns, sizes[head], shapes[:, 1]),
    )
    first, kind = _distinct_edges(shapes, cells, cell_start, *used)
    kinds = _compressed_kinds(shapes, cells, cell_start, first, *used)
    near_start, near_edge = _adjacency(tail, head, len(sizes))
    return {
        "tail": tail,
        "head": head,
        "row_start": offsets(sizes[tail]),
        "row_class": kinds.row_class[rows + np.repeat(kinds.row_lines[kind], sizes[tail])],
        "row_count": kinds.row_count[kind],
        "col_start": offsets(sizes[head]),
        "col_class": kinds.col_class[columns + np.repeat(kinds.col_lines[kind], sizes[head])],
        "col_count": kinds.col_count[kind],
        "table_start": kinds.table_start[kind],
        "table": kinds.table,
        "near_start": near_start,
        "near_edge": near_edge,
    }


def _used_lines(lines: np.ndarray, option_counts: np.ndarray, line_counts: np.ndarray) -> list:
    """For each edge the mask of its lines that some option uses."""
    starts = offsets(line_counts)
    marks = np.zeros(starts[-1], dtype=bool)
    marks[lines + np.repeat(starts[:-1], option_counts)] = True
    return [marks[starts[e] : starts[e + 1]] for e in range(len(line_counts))]


def _distinct_edges(
    shapes: np.ndarray, cells: np.ndarray, cell_start: np.ndarray, row_used: list, col_used: list
) -> tuple[np.ndarray, np.ndarray]:
    """The first edge of each kind, and the kind of each edge; edges of one kind have equal tables
    of which equal lines are used. Repeated layers repeat their kinds."""
    content: dict[object, int] = {}
    index: dict[object, int] = {}
    first: list[int] = []
    kind = np.empty(len(shapes), dtype=np.int64)
    for e, (height, width) in enumerate(shapes.tolist()):
        block = cells[cell_start[e] : cell_start[e] + height * width]
        where = content.setdefault((height, width, block.tobytes()), e)
        key = (where, row_used[e].tobytes(), col_used[e].tobytes())
        if key not in index:
            index[key] = len(first)
            first.append(e)
        kind[e] = index[key]
    return np.array(first, dtype=np.int64), kind


class _Kinds(NamedTuple):
    """Compressed tables of all kinds of edges; lines of kind k start at `row_lines[k]`."""

    row_lines: np.ndarray
    row_class: np.ndarray
    row_count: np.ndarray
    col_lines: np.ndarray
    col_class: np.ndarray
    col_count: np.ndarray
    table_start: np.ndarray
    table: np.ndarray


def _compressed_kinds(
    shapes: np.ndarray,
    cells: np.ndarray,
    cell_start: np.ndarray,
    first: np.ndarray,
    row_used: list,
    col_used: list,
) -> _Kinds:
    """Classes of lines and tables by class, for the edge in `first` of each kind."""
    start = cell_start[first]
    row_lines, col_lines = offsets(shapes[first, 0]), offsets(shapes[first, 1])
    rows_used = concatenate([row_used[e] for e in first], np.bool_)
    cols_used = concatenate([col_used[e] for e in first], np.bool_)
    row_class, row_count = _classes(cells, start, row_lines, col_lines, rows_used, False)
    col_class, col_count = _classes(cells, start, col_lines, row_lines, cols_used, True)
    table_start = offsets(row_count * col_count)
    table = _compressed(
        cells, start, row_lines, col_lines, row_class, col_class, col_count, table_start
    )
    return _Kinds(
        row_lines, row_class, row_count, col_lines, col_class, col_count, table_start, table
    )


def _adjacency(tail: np.ndarray, head: np.ndarray, node_count: int) -> tuple:
    node = np.concatenate([tail, head])
    other = np.concatenate([head, tail])
    edge = np.tile(np.arange(len(tail), dtype=np.int64), 2)
    order = np.lexsort((other, node))
    return offsets(np.bincount(node, minlength=node_count)), edge[order]


@numba.njit(cache=True)
def _classes(cells, cell_start, this_start, that_start, used, transposed):
    """Numbers equal lines of each table by their first occurrence, one table after the other;
    lines that no option uses get -1."""
    edge_count = len(cell_start)
    line_class = np.empty(this_start[edge_count], dtype=np.int64)
    counts = np.zeros(edge_count, dtype=np.int64)
    for e in range(edge_count):
        lines = this_start[e + 1] - this_start[e]
        width = that_start[e + 1] - that_start[e]
        line_step, cell_step = (1, lines) if transposed else (width, 1)
        base = cell_start[e]
        firsts = np.empty(lines, dtype=np.int64)
        for a in range(lines):
            found = -1
            if not used[this_start[e] + a]:
                line_class[this_start[e] + a] = found
                continue
            for c in range(counts[e]):
                equal = True
                for b in range(width):
                    mine = cells[base + a * line_step + b * cell_step]
                    if mine != cells[base + firsts[c] * line_step + b * cell_step]:
                        equal = False
                        break
                if equal:
                    found = c
                    break
            if found < 0:
                found = counts[e]
                firsts[found] = a
                counts[e] += 1
            line_class[this_start[e] + a] = found
    return line_class, counts


@numba.njit(cache=True)
def _compressed(
    cells, cell_start, row_start, col_start, row_class, col_class, col_count, table_start
):
    """Writes each table once per pair of classes."""
    edge_count = len(cell_start)
    table = np.empty(table_start[edge_count], dtype=np.float64)
    for e in range(edge_count):
        width = col_start[e + 1] - col_start[e]
        for a in range(row_start[e + 1] - row_start[e]):
            for b in range(width):
                row, col = row_class[row_start[e] + a], col_class[col_start[e] + b]
                if row < 0 or col < 0:
                    continue
                cell = cells[cell_start[e] + a * width + b]
                table[table_start[e] + row * col_count[e] + col] = cell
    return table
