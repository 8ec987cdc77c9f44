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
    in_kept = np.repeat(parent < 0, np.diff(net.option_start))
    small = gathered(net, merged[kept & in_kept], sizes, new_index[root], *flat)
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


def gathered(
    net: Network,
    cost: np.ndarray,
    sizes: np.ndarray,
    root: np.ndarray,
    map_start: np.ndarray,
    mapped: np.ndarray,
    *,
    only_choices: bool = True,
) -> Network:
    """The network whose nodes hold and pay for all nodes that were merged into them.

    **Arguments:**

    - `cost` (K'): of the options of the new nodes; `sizes` (n'): how many each has.
    - `root` (n): the new node of each node of `net`; `map_start`, `mapped`: for each option of that
      node the option of the old one, as in `Reduction`.
    - `only_choices`: leave out edges of nodes with a single option, whose costs are in `cost`.
    """
    option_start = offsets(sizes)
    uses = _gather_uses(net, root, map_start, mapped, option_start)
    least = 1 if only_choices else 0
    edges = _gather_edges(net, root, sizes, map_start, mapped, least)
    return Network(
        option_start=option_start,
        cost=cost,
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
    net: Network,
    root: np.ndarray,
    sizes: np.ndarray,
    map_start: np.ndarray,
    mapped: np.ndarray,
    least: int,
) -> tuple[np.ndarray, ...]:
    """Edges between different roots with more than `least` options; several on one pair become
    one."""
    tail, head = root[net.tail], root[net.head]
    outer = np.flatnonzero((tail != head) & (sizes[tail] > least) & (sizes[head] > least))
    low, high = np.minimum(tail, head)[outer], np.maximum(tail, head)[outer]
    order = np.lexsort((high, low))
    outer, low, high = outer[order], low[order], high[order]
    new = np.ones(len(outer), dtype=bool)
    new[1:] = (np.diff(low) != 0) | (np.diff(high) != 0)
    group_start = np.append(np.flatnonzero(new), len(outer))
    ends = np.stack([low[new], high[new]], axis=1)
    groups = (outer, group_start, root, map_start, mapped)
    rows, row_count = _joint_lines(net, ends[:, 0].copy(), sizes, *groups)
    columns, col_count = _joint_lines(net, ends[:, 1].copy(), sizes, *groups)
    shapes = np.stack([row_count, col_count], axis=1)
    cell_start = offsets(row_count * col_count)
    cells = _fill_edges(net, ends, sizes, rows, columns, shapes, cell_start, *groups)
    return ends, shapes, cells, cell_start[:-1], rows, columns


@numba.njit(cache=True)
def _joint_lines(net, node, sizes, outer, group_start, root, map_start, mapped):
    """For each group of edges and each option of its node at one end (`node`) a line: options with
    the same line in all edges of the group share one. Also the number of lines of each group."""
    total = 0
    for i in node:
        total += sizes[i]
    lines, counts = np.empty(total, dtype=np.int64), np.empty(len(node), dtype=np.int64)
    filled = 0
    for g in range(len(node)):
        mine = lines[filled : filled + sizes[node[g]]]
        mine[:] = 0
        counts[g] = 1
        for x in range(group_start[g], group_start[g + 1]):
            e = outer[x]
            is_tail = root[net.tail[e]] == node[g]
            i = net.tail[e] if is_tail else net.head[e]
            width = net.row_count[e] if is_tail else net.col_count[e]
            for o in range(len(mine)):
                k = mapped[map_start[i] + o]
                c = net.row_class[net.row_start[e] + k] if is_tail else -1
                mine[o] = mine[o] * width + (c if is_tail else net.col_class[net.col_start[e] + k])
            counts[g] = width if x == group_start[g] else _renumber(mine)
        filled += len(mine)
    return lines, counts


@numba.njit(cache=True)
def _renumber(labels):
    """Replaces equal labels by equal numbers from 0 on, in order; returns how many."""
    order = np.argsort(labels)
    count, last = -1, -1
    for k in order:
        if count < 0 or labels[k] != last:
            count, last = count + 1, labels[k]
        labels[k] = count
    return count + 1


@numba.njit(cache=True)
def _fill_edges(
    net,
    ends,
    sizes,
    rows,
    columns,
    shapes,
    cell_start,
    outer,
    group_start,
    root,
    map_start,
    mapped,
):
    """The tables by line; 0 at lines that no option has."""
    cells = np.zeros(cell_start[-1])
    r, c = 0, 0
    for g in range(len(ends)):
        low, high = ends[g]
        of_row = _first_of(rows[r : r + sizes[low]], shapes[g, 0])
        of_column = _first_of(columns[c : c + sizes[high]], shapes[g, 1])
        r, c = r + sizes[low], c + sizes[high]
        for x in range(group_start[g], group_start[g + 1]):
            e = outer[x]
            forward = root[net.tail[e]] == low
            start_low = map_start[net.tail[e] if forward else net.head[e]]
            start_high = map_start[net.head[e] if forward else net.tail[e]]
            for a in range(shapes[g, 0]):
                if of_row[a] < 0:
                    continue
                mine = mapped[start_low + of_row[a]]
                line = cell_start[g] + a * shapes[g, 1]
                for b in range(shapes[g, 1]):
                    if of_column[b] >= 0:
                        theirs = mapped[start_high + of_column[b]]
                        tail, head = (mine, theirs) if forward else (theirs, mine)
                        cells[line + b] += _cell(net, e, tail, head)
    return cells


@numba.njit(cache=True)
def _first_of(lines, count):
    """The first option of each line, or -1."""
    first = np.full(count, -1, dtype=np.int64)
    for o in range(len(lines) - 1, -1, -1):
        first[lines[o]] = o
    return first
