"""Builds a network whose nodes are merged into others: costs, intervals and edges are gathered at
the roots."""

import numpy as np

from kiwi.solver.compiled import inlined, inner, kernel, stable_order
from kiwi.solver.edge_tables import compressed_edges, offsets, owners, within
from kiwi.solver.network import Network, cell
from kiwi.solver.presolve.reduction import Maps, Reduction
from kiwi.solver.presolve.times import summed_uses


def rebuild(net: Network, cost: np.ndarray, maps: Maps, sizes: np.ndarray) -> Reduction:
    """Merges every node into its root, which gets the memory and the costs of all nodes merged into
    it. The edges of a root with only one option become costs of its neighbours. Options with
    infinite cost are removed.

    - `cost`: the costs of the options of `net`, infinite for options that were ruled out.
    - `maps`: the root of each node, and its option for each option of the root.
    - `sizes` (n'): the number of options of each root.
    """
    starts = offsets(sizes)
    alone = np.full(len(sizes), -1, dtype=np.int64)
    alone = _alone(_merged_costs(net, cost, maps, starts, alone), starts)
    merged = _merged_costs(net, cost, maps, starts, alone)
    kept = np.isfinite(merged)
    sizes = np.bincount(owners(starts)[kept], minlength=len(sizes))
    if (sizes == 0).any():
        return Reduction.nothing(net, infeasible=True)
    of_root = np.repeat(starts[:-1][maps.root], np.diff(maps.start)) + within(maps.start)
    maps = Maps(maps.root, offsets(sizes[maps.root]), maps.option[kept[of_root]])
    small = Network(
        option_start=offsets(sizes),
        cost=merged[kept],
        **_gathered_uses(net, maps, offsets(sizes)),
        times=net.times,
        limit_bytes=net.limit_bytes,
        **compressed_edges(sizes, *_gathered_edges(net, maps, sizes, alone)),
    )
    return Reduction(small, maps)


@kernel
def _alone(cost, starts):
    """Returns, for each root, its only option with a finite cost, or -1 if there are several or
    none."""
    alone = np.full(len(starts) - 1, -1, dtype=np.int64)
    for i in range(len(alone)):
        count = 0
        for o in range(starts[i], starts[i + 1]):
            if cost[o] < np.inf:
                count += 1
                alone[i] = o - starts[i] if count == 1 else -1
    return alone


@kernel
def _merged_costs(net, cost, maps, starts, alone):
    """Returns the costs of the roots' options: the costs of all merged nodes, of the edges between
    them, and of the edges to roots that have only one option (`alone`)."""
    total = np.zeros(starts[-1])
    for i in range(len(maps.root)):
        first = starts[maps.root[i]] - maps.start[i]
        for x in range(maps.start[i], maps.start[i + 1]):
            option = maps.option[x]
            total[first + x] += np.inf if option < 0 else cost[net.option_start[i] + option]
    for h in range(len(net.end_node)):
        _add_inner_edge(net, h, maps, starts, alone, total)
    return total


@inlined
def _add_inner_edge(net, h, maps, starts, alone, total):
    """Adds the costs of an edge to the root of the node at end h if the other end has the same
    root, or a root with only one option. If both roots have only one option, the smaller takes the
    edge."""
    node, other_node = net.end_node[h], net.end_node[h ^ 1]
    root, other_root = maps.root[node], maps.root[other_node]
    if (root == other_root and h & 1) or (
        root != other_root and (alone[other_root] < 0 or (alone[root] >= 0 and root > other_root))
    ):
        return
    for o in range(starts[root + 1] - starts[root]):
        option = maps.option[maps.start[node] + o]
        other_option = maps.option[
            maps.start[other_node] + (o if root == other_root else alone[other_root])
        ]
        if option < 0 or other_option < 0:
            total[starts[root] + o] = np.inf
        else:
            total[starts[root] + o] += net.table[cell(net, h, option, other_option)]


def _gathered_uses(net: Network, maps: Maps, starts: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the intervals of all merged nodes, by field name of `Network`. Intervals of one
    option with the same span are added up."""
    sizes = np.diff(maps.start)
    old = np.repeat(net.option_start[:-1], sizes) + maps.option
    new = np.repeat(starts[:-1][maps.root], sizes) + within(maps.start)
    counts = np.diff(net.use_start)[old]
    use = np.repeat(net.use_start[old], counts) + within(offsets(counts))
    spans = net.use_begin[use], net.use_end[use], net.use_bytes[use]
    return summed_uses(np.repeat(new, counts), *spans, int(starts[-1]))


def _gathered_edges(
    net: Network, maps: Maps, sizes: np.ndarray, alone: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """Returns the arguments `ends`, `tables` and `lines` of `compressed_edges`, for the edges
    between different roots with several options. Several edges between the same roots become
    one."""
    ends = maps.root[net.ends]
    outer = np.flatnonzero((ends[:, 0] != ends[:, 1]) & (alone[ends] < 0).all(axis=1))
    ends = np.sort(ends[outer], axis=1)
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    outer, ends = outer[order], ends[order]
    new = np.ones(len(outer), dtype=bool)
    new[1:] = (np.diff(ends, axis=0) != 0).any(axis=1)
    ends, group_start = ends[new], np.append(np.flatnonzero(new), len(outer))
    lines, counts = _joint_lines(net, ends.ravel(), sizes, outer, group_start, maps)
    shapes = counts.reshape(-1, 2)
    cell_start = offsets(shapes.prod(axis=1))
    groups = ends.ravel(), lines, counts, cell_start
    cells = _fill_edges(net, sizes, *groups, outer, group_start, maps)
    pieces = np.split(cells, cell_start[1:-1]) if len(ends) else []
    tables = [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]
    return ends, tables, lines


@inner
def _end_at(net, e, maps, root):
    return 2 * e if maps.root[net.end_node[2 * e]] == root else 2 * e + 1


@kernel
def _joint_lines(net, end_node, sizes, outer, group_start, maps):
    """Returns the line of each option at each end of each group of edges, and the number of lines
    at each end. Options share a line if they share their line in all edges of the group."""
    total = 0
    for i in end_node:
        total += sizes[i]
    lines = np.zeros(total, dtype=np.int64)
    counts = np.empty(len(end_node), dtype=np.int64)
    filled = 0
    for end in range(len(end_node)):
        labels = lines[filled : filled + sizes[end_node[end]]]
        filled += len(labels)
        first, last = group_start[end >> 1], group_start[(end >> 1) + 1]
        for x in range(first, last):
            h = _end_at(net, outer[x], maps, end_node[end])
            start = maps.start[net.end_node[h]]
            for o in range(len(labels)):
                line = net.line[net.line_start[h] + maps.option[start + o]]
                labels[o] = labels[o] * net.line_count[h] + line
            counts[end] = net.line_count[h] if x == first else _renumber(labels)
    return lines, counts


@inlined
def _renumber(labels):
    """Replaces labels by their ranks among the distinct labels. Returns the number of these."""
    order = stable_order(labels)
    count, last = -1, -1
    for k in order:
        if count < 0 or labels[k] != last:
            count, last = count + 1, labels[k]
        labels[k] = count
    return count + 1


@kernel
def _fill_edges(net, sizes, end_node, lines, counts, cell_start, outer, group_start, maps):
    """Returns the cells of the tables of all groups, with 0 at lines that no option has."""
    cells = np.zeros(cell_start[-1])
    read = 0
    for group in range(len(end_node) // 2):
        rows, columns, first = counts[2 * group], counts[2 * group + 1], end_node[2 * group]
        of_row = _first_of(lines[read : read + sizes[first]], rows)
        read += sizes[first]
        of_column = _first_of(lines[read : read + sizes[end_node[2 * group + 1]]], columns)
        read += sizes[end_node[2 * group + 1]]
        for x in range(group_start[group], group_start[group + 1]):
            h = _end_at(net, outer[x], maps, first)
            row_options = maps.option[maps.start[net.end_node[h]] :]
            column_options = maps.option[maps.start[net.end_node[h ^ 1]] :]
            for a in range(rows):
                for b in range(columns):
                    if of_row[a] >= 0 and of_column[b] >= 0:
                        pair = cell(net, h, row_options[of_row[a]], column_options[of_column[b]])
                        cells[cell_start[group] + a * columns + b] += net.table[pair]
    return cells


@inner
def _first_of(lines, count):
    """Returns the first option of each line, or -1."""
    first = np.full(count, -1, dtype=np.int64)
    for o in range(len(lines) - 1, -1, -1):
        first[lines[o]] = o
    return first
