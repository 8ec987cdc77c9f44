"""Compressed tables of edges: equal lines (rows or columns) of a table are stored once, and so are
equal tables.

Two options that differ only in residency have the same resharding costs, and equal layers have
equal tables. The tables of a deep model then take the memory of one layer's tables.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from kiwi.solver.compiled import kernel


def offsets(sizes: npt.ArrayLike) -> np.ndarray:
    """Returns 0 and the running sums of `sizes`, int64 of shape (n + 1,)."""
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def within(starts: np.ndarray) -> np.ndarray:
    """Returns the position of each entry in its piece. Piece k is starts[k] .. starts[k + 1]."""
    return np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))


def owners(starts: np.ndarray) -> np.ndarray:
    """Returns the index of each entry's piece. Piece k is starts[k] .. starts[k + 1]."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def concatenate(pieces: list[np.ndarray], dtype: type) -> np.ndarray:
    """Returns the pieces as one array of `dtype`, which is empty if there are none."""
    return np.concatenate([np.zeros(0, dtype), *pieces], dtype=dtype, casting="unsafe")


def compressed_edges(
    sizes: np.ndarray, ends: np.ndarray, tables: list[np.ndarray], lines: np.ndarray
) -> dict[str, Any]:
    """Returns the arrays of a `Network` that describe its edges, by field name.

    - `sizes` (n): the number of options of each node.
    - `ends` (E, 2): the nodes of each edge, the smaller first; no pair twice.
    - `tables`: one matrix per edge; edges may share a matrix.
    - `lines`: for each end of each edge, the line of each option of its node in the edge's matrix.
    """
    node, counts = ends.ravel(), sizes[ends.ravel()]
    shapes = np.array([table.shape for table in tables], dtype=np.int64).reshape(-1, 2)
    start = offsets(shapes.ravel())
    used = np.zeros(start[-1], dtype=bool)
    used[lines + np.repeat(start[:-1], counts)] = True
    first, kind = _distinct_edges(tables, start, used)
    cells = concatenate([tables[edge].ravel() for edge in first], np.float64)
    cell_start = offsets(shapes[first].prod(axis=1))
    kind_start = offsets(shapes[first].ravel())
    kind_used = concatenate(
        [used[start[2 * edge] : start[2 * edge + 2]] for edge in first], np.bool_
    )
    classes, class_count = _classes(cells, cell_start, kind_start, kind_used)
    table_start = offsets(class_count[::2] * class_count[1::2])
    table = _compressed(cells, cell_start, kind_start, classes, class_count, table_start)
    end_kind = np.stack([2 * kind, 2 * kind + 1], axis=1).ravel()
    line_count = class_count[end_kind]
    step = np.ones_like(line_count)
    step[::2] = line_count[1::2]
    return {
        "end_node": node.copy(),
        "line_start": offsets(counts),
        "line": classes[lines + np.repeat(kind_start[end_kind], counts)],
        "line_count": line_count,
        "step": step,
        "table_start": table_start[kind],
        "table": table,
        "near_start": offsets(np.bincount(node, minlength=len(sizes))),
        "near_end": np.lexsort((ends[:, ::-1].ravel(), node)),
    }


def _distinct_edges(
    tables: list[np.ndarray], line_start: np.ndarray, used: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first edge of each kind, and the kind of each edge.

    Edges of one kind have equal tables, and options use the same lines of them. Repeated layers
    repeat the kinds, often with the same arrays.
    """
    by_memory: dict[object, int] = {}
    by_content: dict[object, int] = {}
    index: dict[object, int] = {}
    first: list[int] = []
    kind = np.empty(len(tables), dtype=np.int64)
    for edge, table in enumerate(tables):
        memory = (table.__array_interface__["data"][0], table.shape, table.strides)
        if memory not in by_memory:
            by_memory[memory] = by_content.setdefault((table.shape, table.tobytes()), edge)
        key = (by_memory[memory], used[line_start[2 * edge] : line_start[2 * edge + 2]].tobytes())
        if key not in index:
            index[key] = len(first)
            first.append(edge)
        kind[edge] = index[key]
    return np.array(first, dtype=np.int64), kind


@kernel
def _classes(cells, cell_start, line_start, used):
    """Returns the class of each line and the number of classes at each end of each table.

    Equal lines at one end form a class. Classes are numbered by their first line; lines that no
    option uses have class -1.
    """
    ends = len(line_start) - 1
    line_class = np.full(line_start[ends], -1, dtype=np.int64)
    counts = np.zeros(ends, dtype=np.int64)
    for h in range(ends):
        start, width = line_start[h], line_start[(h ^ 1) + 1] - line_start[h ^ 1]
        lines = line_start[h + 1] - start
        line_step, cell_step = (1, lines) if h & 1 else (width, 1)
        base = cell_start[h >> 1]
        firsts, codes = np.empty(lines, dtype=np.int64), np.empty(lines)
        for a in range(lines):
            if not used[start + a]:
                continue
            code = 0.0  # Equal lines have equal codes.
            for b in range(width):
                code = 0.7 * code + cells[base + a * line_step + b * cell_step]
            known, b = 0, 0
            while known < counts[h] and b < width:  # Finds the first class with an equal line.
                value, known_base = (
                    cells[base + a * line_step + b * cell_step],
                    firsts[known] * line_step,
                )
                b += 1
                if codes[known] != code or value != cells[base + known_base + (b - 1) * cell_step]:
                    known, b = known + 1, 0
            if known == counts[h]:
                firsts[known], codes[known] = a, code
                counts[h] += 1
            line_class[start + a] = known
    return line_class, counts


@kernel
def _compressed(cells, cell_start, line_start, line_class, counts, table_start):
    """Returns the tables with one cell for each pair of classes."""
    table = np.empty(table_start[-1], dtype=np.float64)
    for e in range(len(table_start) - 1):
        rows = line_class[line_start[2 * e] : line_start[2 * e + 1]]
        columns = line_class[line_start[2 * e + 1] : line_start[2 * e + 2]]
        for a in range(len(rows)):
            for b in range(len(columns)):
                if rows[a] >= 0 and columns[b] >= 0:
                    value = cells[cell_start[e] + a * len(columns) + b]
                    table[table_start[e] + rows[a] * counts[2 * e + 1] + columns[b]] = value
    return table
