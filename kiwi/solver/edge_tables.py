"""Compressed tables of edges: equal lines of a table are kept once, and so are equal tables.

Two options that differ only in residency cost the same resharding, and equal layers reshard at
equal costs. So the tables of a deep model take the memory of one layer's.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from kiwi.solver.compiled import kernel


def offsets(sizes: npt.ArrayLike) -> np.ndarray:
    """0 and the running sums of `sizes`."""
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def within(starts: np.ndarray) -> np.ndarray:
    """The position of each entry in its piece, for pieces that begin at `starts`."""
    return np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))


def owners(starts: np.ndarray) -> np.ndarray:
    """The piece of each entry, for pieces that begin at `starts`."""
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def concatenate(pieces: list[np.ndarray], dtype: type) -> np.ndarray:
    """The pieces as one array of `dtype`; an empty one if there are none."""
    return np.concatenate([np.zeros(0, dtype), *pieces], dtype=dtype, casting="unsafe")


def compressed_edges(
    sizes: np.ndarray, ends: np.ndarray, tables: list[np.ndarray], lines: np.ndarray
) -> dict[str, Any]:
    """The edge arrays of a `Network`.

    - `sizes` (n): numbers of options of the nodes.
    - `ends` (E, 2): the nodes of each edge, the smaller first; no pair twice.
    - `tables`: one matrix per edge; edges may share theirs.
    - `lines`: for each end of each edge, for each option of its node the line in that table.
    """
    node, counts = ends.ravel(), sizes[ends.ravel()]
    shapes = np.array([table.shape for table in tables], dtype=np.int64).reshape(-1, 2)
    start = offsets(shapes.ravel())
    used = np.zeros(start[-1], dtype=bool)
    used[lines + np.repeat(start[:-1], counts)] = True
    first, kind = _distinct_edges(tables, start, used)
    cells = concatenate([tables[e].ravel() for e in first], np.float64)
    cell_start = offsets(shapes[first].prod(axis=1))
    kind_start = offsets(shapes[first].ravel())
    kind_used = concatenate([used[start[2 * e] : start[2 * e + 2]] for e in first], np.bool_)
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
    """The first edge of each kind, and the kind of each edge; edges of one kind have equal tables
    of which equal lines are used. Repeated layers repeat their kinds, often in the same memory."""
    by_memory: dict[object, int] = {}
    by_content: dict[object, int] = {}
    index: dict[object, int] = {}
    first: list[int] = []
    kind = np.empty(len(tables), dtype=np.int64)
    for e, table in enumerate(tables):
        memory = (table.__array_interface__["data"][0], table.shape, table.strides)
        if memory not in by_memory:
            by_memory[memory] = by_content.setdefault((table.shape, table.tobytes()), e)
        key = (by_memory[memory], used[line_start[2 * e] : line_start[2 * e + 2]].tobytes())
        if key not in index:
            index[key] = len(first)
            first.append(e)
        kind[e] = index[key]
    return np.array(first, dtype=np.int64), kind


@kernel
def _classes(cells, cell_start, line_start, used):
    """Numbers equal lines at each end of each table by their first occurrence; lines that no option
    uses get -1."""
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
            code = 0.0  # that of equal lines is equal
            for b in range(width):
                code = 0.7 * code + cells[base + a * line_step + b * cell_step]
            known, b = 0, 0
            while known < counts[h] and b < width:  # the first class with an equal line
                mine, other = cells[base + a * line_step + b * cell_step], firsts[known] * line_step
                b += 1
                if codes[known] != code or mine != cells[base + other + (b - 1) * cell_step]:
                    known, b = known + 1, 0
            if known == counts[h]:
                firsts[known], codes[known] = a, code
                counts[h] += 1
            line_class[start + a] = known
    return line_class, counts


@kernel
def _compressed(cells, cell_start, line_start, line_class, counts, table_start):
    """Writes each table once per pair of classes."""
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
