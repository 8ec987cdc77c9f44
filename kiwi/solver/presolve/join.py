"""Joins nodes with few partners to a neighbour: one node remains, whose options are the allowed
pairs.

A producer and its reader often share a third node that the two almost decide, such as a copy that
exists if their layouts differ. Such triangles weaken the relaxation, which sees one edge at a time.
They also obstruct the search over trees, since a tree contains no triangle. A node k of degree one
or two is joined to its neighbour j if the edge allows not many more pairs of options than j has
options. The other edge of k is moved to j. An option of j that is in several pairs becomes several
options, which share their line in the tables of the other edges of j.
"""

from dataclasses import replace

import numpy as np

from kiwi.solver.compiled import inlined, inner, kernel
from kiwi.solver.edge_tables import offsets, within
from kiwi.solver.network import Network
from kiwi.solver.presolve.rebuild import rebuild
from kiwi.solver.presolve.reduction import Maps, Reduction

MOST_OPTIONS = 300
"""The largest number of pairs for which two nodes are joined."""
_MOST_GROWTH = 4.0
"""The largest factor by which a join may increase the number of options of the neighbour."""
_MOST_DEGREE = 2
"""The largest number of edges of a node that is joined to a neighbour."""


def join(net: Network) -> Reduction:
    """Returns the reduction by one pass of joins. No node is joined to a node that is itself joined
    to another."""
    end, pairs = _choose(net)
    kept, joined = end < 0, np.flatnonzero(end >= 0)
    if not len(joined):
        return Reduction.nothing(net)
    root = np.arange(net.node_count)
    root[joined] = net.end_node[end[joined] ^ 1]
    sizes = np.diff(net.option_start)
    sizes[root[joined]] = np.add.reduceat(pairs, net.option_start[:-1])[root[joined]]
    starts = offsets(sizes[root])
    maps = Maps(root, starts, within(starts))
    _write_pairs(net, end[joined[np.argsort(root[joined], kind="stable")]], pairs, maps)
    return rebuild(net, net.cost, replace(maps, root=(np.cumsum(kept) - 1)[root]), sizes[kept])


@kernel
def _choose(net):
    """Chooses the nodes to join. Returns, for each node, its end of the edge to the neighbour it is
    joined to, or -1; and for each option, the number of options that it becomes."""
    count = len(net.option_start) - 1
    end, takes = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.bool_)
    pairs = np.zeros(len(net.cost), dtype=np.int64)
    for o in range(len(pairs)):
        pairs[o] = net.cost[o] < np.inf
    for k in range(count):
        degree = net.near_start[k + 1] - net.near_start[k]
        if takes[k] or degree == 0 or degree > _MOST_DEGREE:
            continue
        best = MOST_OPTIONS + 1
        for near in range(net.near_start[k], net.near_start[k + 1]):
            h = net.near_end[near]
            if end[net.end_node[h ^ 1]] >= 0:
                continue
            before, after = _pair_counts(net, h, pairs, np.bool_(False))
            if after < best and after <= _MOST_GROWTH * before:
                best, end[k] = after, h
        if end[k] >= 0:
            takes[net.end_node[end[k] ^ 1]] = True
            _pair_counts(net, end[k], pairs, np.bool_(True))
    return end, pairs


@inner
def _pair_counts(net, h, pairs, write):
    """Returns the number of options of the neighbour at the other end of h, now and with the node
    at h joined. With `write`, multiplies `pairs` accordingly."""
    partner_start, start = _partner_lists(net, h)[0], net.line_start[h ^ 1]
    first = net.option_start[net.end_node[h ^ 1]]
    before, after = 0, 0
    for b in range(net.line_start[(h ^ 1) + 1] - start):
        line = net.line[start + b]
        partners = partner_start[line + 1] - partner_start[line]
        before += pairs[first + b]
        after += pairs[first + b] * partners
        if write:
            pairs[first + b] *= partners
    return before, after


@kernel
def _write_pairs(net, ends, pairs, maps):
    """Writes to `maps.option` what each option of a new node means: an option of the neighbour, in
    order, and for each joined node a partner of that option.

    - `ends`: the joined nodes' ends, sorted by the neighbours to which they are joined.
    """
    last = -1
    block = np.ones(1, dtype=np.int64)
    for h in ends:
        j = net.end_node[h ^ 1]
        counts = pairs[net.option_start[j] : net.option_start[j + 1]]
        if j != last:
            last, block = j, np.ones(len(counts), dtype=np.int64)
            filled = maps.start[j]
            for o in range(len(counts)):
                maps.option[filled : filled + counts[o]] = o
                filled += counts[o]
        _write_member(net, h, counts, block, maps.option[maps.start[net.end_node[h]] :])


@inlined
def _write_member(net, h, pairs, block, out):
    """Writes the options of a joined node to `out`.

    For each option b of the neighbour, each partner is written `block[b]` times in a row, and the
    sequence is repeated until it has `pairs[b]` entries. Then `block[b]` is multiplied by the
    number of partners, so that the next joined node varies more slowly.
    """
    start, options = _partner_lists(net, h)
    filled = 0
    for b in range(len(block)):
        line = net.line[net.line_start[h ^ 1] + b]
        partners = start[line + 1] - start[line]
        for x in range(pairs[b]):
            out[filled + x] = options[start[line] + (x // block[b]) % partners]
        filled += pairs[b]
        block[b] *= max(1, partners)


@inner
def _partner_lists(net, h):
    """Returns, for each line at the other end of h, the options at end h that it allows, as starts
    and a flat array."""
    across, members = net.line_count[h ^ 1], net.line[net.line_start[h] : net.line_start[h + 1]]
    first = net.option_start[net.end_node[h]]
    start = np.zeros(across + 1, dtype=np.int64)
    options = np.empty(across * len(members), dtype=np.int64)
    filled = 0
    for b in range(across):
        column = net.table_start[h >> 1] + b * net.step[h ^ 1]
        for o, line in enumerate(members):
            if net.cost[first + o] + net.table[column + line * net.step[h]] < np.inf:
                options[filled] = o
                filled += 1
        start[b + 1] = filled
    return start, options
