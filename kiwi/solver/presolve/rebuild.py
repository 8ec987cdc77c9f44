"""A network with nodes merged into others: costs, intervals and edges, gathered at the roots."""

import numba
import numpy as np

from kiwi.solver.edge_tables import compressed_edges, offsets
from kiwi.solver.network import Network
from kiwi.solver.presolve.reduction import Reduction
from kiwi.solver.presolve.times import summed_uses


def rebuild(
    net: Network,
    cost: np.ndarray,
    parent: np.ndarray,
    start: np.ndarray,
    option: np.ndarray,
    order: np.ndarray,
) -> Reduction:
    """Merges every node into the root of its chain of parents.

    **Arguments:**

    - `cost`: costs of the options of `net`, infinite for those that were ruled out.
    - `parent` (n): -1 for roots; `start`, `option`: for each option of the parent the option of
      the node.
    - `order`: the nodes, each after its parent.
    """
    root, map_start, mapped = _resolve(net.option_start, cost, parent, start, option, order)
    merged = _merged_costs(net, cost, root, map_start, mapped)
    kept_nodes = np.flatnonzero(parent < 0)
    kept = np.isfinite(merged)
    sizes = np.add.reduceat(kept, net.option_start[:-1])[kept_nodes]
    new_index = np.cumsum(parent < 0) - 1
    flat = _kept_maps(net.option_start, kept, root, map_start, mapped)
    if (sizes == 0).any():
        return Reduction.nothing(net, infeasible=True)
    small = _assemble(net, merged, kept, kept_nodes, sizes, new_index, root, *flat)
    return Reduction(small, new_index[root], *flat)


@numba.njit(cache=True)
def _resolve(option_start, cost, parent, start, option, order):
    """For each node its root, and for each option of the root its own option or -1."""
    count = len(parent)
    root = np.arange(count)
    for i in order:
        if parent[i] >= 0:
            root[i] = root[parent[i]]
    map_start = np.zeros(count + 1, dtype=np.int64)
    for i in range(count):
        size = option_start[root[i] + 1] - option_start[root[i]]
        map_start[i + 1] = map_start[i] + size
    mapped = np.full(map_start[count], -1, dtype=np.int64)
    for i in order:
        first = option_start[root[i]]
        for o in range(option_start[root[i] + 1] - first):
            if parent[i] < 0:
                mapped[map_start[i] + o] = o if cost[first + o] < np.inf else -1
            else:
                above = mapped[map_start[parent[i]] + o]
                mapped[map_start[i] + o] = -1 if above < 0 else option[start[i] + above]
    return root, map_start, mapped


@numba.njit(cache=True)
def _cell(net, e, a, b):
    row, col = net.row_class[net.row_start[e] + a], net.col_class[net.col_start[e] + b]
    return net.table[net.table_start[e] + row * net.col_count[e] + col]


@numba.njit(cache=True)
def _only(cost, first, last):
    """The one option with a finite cost, or -1 where there are several."""
    found = -1
    for o in range(first, last):
        if cost[o] < np.inf:
            if found >= 0:
                return -1
            found = o - first
    return found


@numba.njit(cache=True)
def _merged_costs(net, cost, root, map_start, mapped):
    """Costs of the roots' options: of all nodes merged, of the edges among them, and of the edges
    to roots with a single option."""
    total = np.zeros(len(cost))
    for i in range(len(root)):
        first = net.option_start[root[i]]
        for o in range(map_start[i + 1] - map_start[i]):
            mine = mapped[map_start[i] + o]
            total[first + o] += np.inf if mine < 0 else cost[net.option_start[i] + mine]
    for e in range(len(net.tail)):
        a, b = net.tail[e], net.head[e]
        for one, other in ((a, b), (b, a)):
            _add_inner_edge(net, cost, e, one, other, root, map_start, mapped, total)
            if root[a] == root[b]:
                break
    return total


@numba.njit(cache=True)
def _add_inner_edge(net, cost, e, one, other, root, map_start, mapped, total):
    """Adds an edge to the root of `one` if `other` has the same root, or one without a choice.
    Where neither root has a choice, the smaller takes the edge."""
    r, s = root[one], root[other]
    only = -1
    if r != s:
        only = _only(cost, net.option_start[s], net.option_start[s + 1])
        alone = _only(cost, net.option_start[r], net.option_start[r + 1]) >= 0
        if only < 0 or (alone and r > s):
            return
    first = net.option_start[r]
    for o in range(net.option_start[r + 1] - first):
        mine = mapped[map_start[one] + o]
        theirs = mapped[map_start[other] + (o if only < 0 else only)]
        if mine < 0 or theirs < 0:
            total[first + o] = np.inf
        elif net.tail[e] == one:
            total[first + o] += _cell(net, e, mine, theirs)
        else:
            total[first + o] += _cell(net, e, theirs, mine)


@numba.njit(cache=True)
def _kept_maps(option_start, kept, root, map_start, mapped):
    """`map_start` and `mapped` over the roots' options that are kept."""
    count = len(root)
    starts = np.zeros(count + 1, dtype=np.int64)
    flat = np.empty(len(mapped), dtype=np.int64)
    filled = 0
    for i in range(count):
        first = option_start[root[i]]
        for o in range(map_start[i + 1] - map_start[i]):
            if kept[first + o]:
                flat[filled] = mapped[map_start[i] + o]
                filled += 1
        starts[i + 1] = filled
    return starts, flat[:filled]


def _assemble(
    net: Network,
    merged: np.ndarray,
    kept: np.ndarray,
    kept_nodes: np.ndarray,
    sizes: np.ndarray,
    new_index: np.ndarray,
    root: np.ndarray,
    map_start: np.ndarray,
    mapped: np.ndarray,
) -> Network:
    in_kept = np.zeros(net.node_count, dtype=bool)
    in_kept[kept_nodes] = True
    of_kept = kept & np.repeat(in_kept, np.diff(net.option_start))
    option_start = offsets(sizes)
    uses = _gather_uses(net, new_index[root], map_start, mapped, option_start)
    edges = _gather_edges(net, new_index[root], sizes, map_start, mapped)
    return Network(
        option_start=option_start,
        cost=merged[of_kept],
        use_start=uses[0],
        use_begin=uses[1],
        use_end=uses[2],
        use_bytes=uses[3],
        times=net.times,
        limit_bytes=net.limit_bytes,
        **compressed_edges(sizes, *edges),
    )


def _gather_uses(
    net: Network, root: np.ndarray, map_start: np.ndarray, mapped: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, ...]:
    """The intervals of all nodes merged, equal spans of one option added up."""
    owner, use = _list_uses(net, root, map_start, mapped, starts)
    columns = summed_uses(owner, net.use_begin[use], net.use_end[use], net.use_bytes[use])
    counts = np.bincount(columns[0], minlength=int(starts[-1]))
    return offsets(counts), *columns[1:]


@numba.njit(cache=True)
def _list_uses(net, root, map_start, mapped, starts):
    """Pairs (option of the new network, interval of the old one)."""
    total = 0
    for i in range(len(root)):
        for k in range(map_start[i], map_start[i + 1]):
            o = net.option_start[i] + mapped[k]
            total += net.use_start[o + 1] - net.use_start[o]
    owner, use = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    filled = 0
    for i in range(len(root)):
        for k in range(map_start[i], map_start[i + 1]):
            o = net.option_start[i] + mapped[k]
            for u in range(net.use_start[o], net.use_start[o + 1]):
                owner[filled] = starts[root[i]] + k - map_start[i]
                use[filled] = u
                filled += 1
    return owner, use


def _gather_edges(
    net: Network, root: np.ndarray, sizes: np.ndarray, map_start: np.ndarray, mapped: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Edges between different roots that both have a choice; several on one pair become one
    table over all options, single ones keep their own."""
    tail, head = root[net.tail], root[net.head]
    outer = np.flatnonzero((tail != head) & (sizes[tail] > 1) & (sizes[head] > 1))
    low, high = np.minimum(tail, head)[outer], np.maximum(tail, head)[outer]
    order = np.lexsort((high, low))
    outer, low, high = outer[order], low[order], high[order]
    new = np.ones(len(outer), dtype=bool)
    new[1:] = (np.diff(low) != 0) | (np.diff(high) != 0)
    group_start = np.append(np.flatnonzero(new), len(outer))
    ends = np.stack([low[new], high[new]], axis=1)
    single = np.diff(group_start) == 1
    shapes = np.stack([sizes[ends[:, 0]], sizes[ends[:, 1]]], axis=1)
    lone = outer[group_start[:-1][single]]
    forward = root[net.tail[lone]] == ends[single, 0]
    shapes[single, 0] = np.where(forward, net.row_count[lone], net.col_count[lone])
    shapes[single, 1] = np.where(forward, net.col_count[lone], net.row_count[lone])
    cells, rows, columns = _fill_edges(
        net, outer, group_start, ends, shapes, sizes, root, map_start, mapped
    )
    cell_start = offsets(shapes[:, 0] * shapes[:, 1])[:-1]
    return ends, shapes, cells, cell_start, rows, columns


@numba.njit(cache=True)
def _fill_edges(net, outer, group_start, ends, shapes, sizes, root, map_start, mapped):
    count = len(ends)
    cell_total, row_total, col_total = 0, 0, 0
    for g in range(count):
        cell_total += shapes[g, 0] * shapes[g, 1]
        row_total += sizes[ends[g, 0]]
        col_total += sizes[ends[g, 1]]
    cells = np.zeros(cell_total)
    rows, columns = np.empty(row_total, dtype=np.int64), np.empty(col_total, dtype=np.int64)
    c, r, k = 0, 0, 0
    for g in range(count):
        height, width = sizes[ends[g, 0]], sizes[ends[g, 1]]
        area = shapes[g, 0] * shapes[g, 1]
        block = cells[c : c + area].reshape(shapes[g, 0], shapes[g, 1])
        first, last = group_start[g], group_start[g + 1]
        if last - first == 1:
            _copy_edge(
                net,
                outer[first],
                root[net.tail[outer[first]]] == ends[g, 0],
                block,
                rows[r : r + height],
                columns[k : k + width],
                map_start,
                mapped,
            )
        else:
            rows[r : r + height] = np.arange(height)
            columns[k : k + width] = np.arange(width)
            for x in range(first, last):
                _add_edge(net, outer[x], root, ends[g, 0], block, map_start, mapped)
        c, r, k = c + area, r + height, k + width
    return cells, rows, columns


@numba.njit(cache=True)
def _copy_edge(net, e, forward, block, rows, columns, map_start, mapped):
    cols = net.col_count[e]
    for a in range(net.row_count[e]):
        for b in range(cols):
            value = net.table[net.table_start[e] + a * cols + b]
            if forward:
                block[a, b] = value
            else:
                block[b, a] = value
    of_tail, of_head = (rows, columns) if forward else (columns, rows)
    for o in range(len(of_tail)):
        of_tail[o] = net.row_class[net.row_start[e] + mapped[map_start[net.tail[e]] + o]]
    for o in range(len(of_head)):
        of_head[o] = net.col_class[net.col_start[e] + mapped[map_start[net.head[e]] + o]]


@numba.njit(cache=True)
def _add_edge(net, e, root, low, block, map_start, mapped):
    forward = root[net.tail[e]] == low
    for a in range(block.shape[0]):
        for b in range(block.shape[1]):
            x, y = (a, b) if forward else (b, a)
            mine = mapped[map_start[net.tail[e]] + x]
            block[a, b] += _cell(net, e, mine, mapped[map_start[net.head[e]] + y])
