"""A network with nodes merged into others: costs, intervals and edges, gathered at the roots."""

import numpy as np

from kiwi.solver.compiled import inlined, inner, kernel, stable_order
from kiwi.solver.edge_tables import compressed_edges, offsets, owners, within
from kiwi.solver.network import Network, cell
from kiwi.solver.presolve.reduction import Maps, Reduction
from kiwi.solver.presolve.times import summed_uses


def rebuild(net: Network, cost: np.ndarray, maps: Maps, sizes: np.ndarray) -> Reduction:
    """Merges every node into its root: roots have the memory and the costs of all nodes merged into
    them. If a root has only one option left, its edges become costs of its neighbours.

    - `cost`: costs of the options of `net`, infinite for those that were ruled out.
    - `sizes` (n'): the numbers of options of the roots. Options with infinite cost are removed.
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
    """For each root the only option with a finite cost, or -1 if there are several or none."""
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
    """Costs of the roots' options: of all nodes merged, of the edges among them, and of the edges
    to roots that are left `alone` with an option."""
    total = np.zeros(starts[-1])
    for i in range(len(maps.root)):
        first = starts[maps.root[i]] - maps.start[i]
        for x in range(maps.start[i], maps.start[i + 1]):
            mine = maps.option[x]
            total[first + x] += np.inf if mine < 0 else cost[net.option_start[i] + mine]
    for h in range(len(net.end_node)):
        _add_inner_edge(net, h, maps, starts, alone, total)
    return total


@inlined
def _add_inner_edge(net, h, maps, starts, alone, total):
    """Adds an edge to the root of the node at end h if the other end has the same root, or one
    left alone. Where both are, the smaller takes the edge."""
    one, other = net.end_node[h], net.end_node[h ^ 1]
    r, s = maps.root[one], maps.root[other]
    if (r == s and h & 1) or (r != s and (alone[s] < 0 or (alone[r] >= 0 and r > s))):
        return
    for o in range(starts[r + 1] - starts[r]):
        mine = maps.option[maps.start[one] + o]
        theirs = maps.option[maps.start[other] + (o if r == s else alone[s])]
        if mine < 0 or theirs < 0:
            total[starts[r] + o] = np.inf
        else:
            total[starts[r] + o] += net.table[cell(net, h, mine, theirs)]


def _gathered_uses(net: Network, maps: Maps, starts: np.ndarray) -> dict[str, np.ndarray]:
    """The intervals of all nodes merged, equal spans of one option added up."""
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
    """Edges between different roots that have a choice; several on one pair become one."""
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
    """For each end of a group of edges and each option of its node a line: options with the same
    line in all edges of the group share one. Also the number of lines at each end."""
    total = 0
    for i in end_node:
        total += sizes[i]
    lines = np.zeros(total, dtype=np.int64)
    counts = np.empty(len(end_node), dtype=np.int64)
    filled = 0
    for end in range(len(end_node)):
        mine = lines[filled : filled + sizes[end_node[end]]]
        filled += len(mine)
        first, last = group_start[end >> 1], group_start[(end >> 1) + 1]
        for x in range(first, last):
            h = _end_at(net, outer[x], maps, end_node[end])
            start = maps.start[net.end_node[h]]
            for o in range(len(mine)):
                line = net.line[net.line_start[h] + maps.option[start + o]]
                mine[o] = mine[o] * net.line_count[h] + line
            counts[end] = net.line_count[h] if x == first else _renumber(mine)
    return lines, counts


@inlined
def _renumber(labels):
    """Replaces equal labels by equal numbers from 0 on, in order; returns how many."""
    order = stable_order(labels)
    count, last = -1, -1
    for k in order:
        if count < 0 or labels[k] != last:
            count, last = count + 1, labels[k]
        labels[k] = count
    return count + 1


@kernel
def _fill_edges(net, sizes, end_node, lines, counts, cell_start, outer, group_start, maps):
    """The tables by line; 0 at lines that no option has."""
    cells = np.zeros(cell_start[-1])
    read = 0
    for g in range(len(end_node) // 2):
        rows, columns, first = counts[2 * g], counts[2 * g + 1], end_node[2 * g]
        of_row = _first_of(lines[read : read + sizes[first]], rows)
        read += sizes[first]
        of_column = _first_of(lines[read : read + sizes[end_node[2 * g + 1]]], columns)
        read += sizes[end_node[2 * g + 1]]
        for x in range(group_start[g], group_start[g + 1]):
            h = _end_at(net, outer[x], maps, first)
            mine = maps.option[maps.start[net.end_node[h]] :]
            theirs = maps.option[maps.start[net.end_node[h ^ 1]] :]
            for a in range(rows):
                for b in range(columns):
                    if of_row[a] >= 0 and of_column[b] >= 0:
                        pair = cell(net, h, mine[of_row[a]], theirs[of_column[b]])
                        cells[cell_start[g] + a * columns + b] += net.table[pair]
    return cells


@inner
def _first_of(lines, count):
    """The first option of each line, or -1."""
    first = np.full(count, -1, dtype=np.int64)
    for o in range(len(lines) - 1, -1, -1):
        first[lines[o]] = o
    return first
