"""Nodes with few partners are joined to a neighbour: one node whose options are the pairs.

Between a producer and its reader stands often a third node that is all but decided by the two (a
copy that exists where their layouts differ). Such triangles weaken the relaxation, which looks
at one edge at a time, and stop a search over trees, which cannot contain them. A node k of degree
one or two is joined to its neighbour j where the pairs of options that the edge allows are not
many more than the options of j; k's other edge goes on to j. The options of j that take part in
several such pairs multiply, and stay equal lines in the tables of j's other edges.
"""

from dataclasses import replace

import numpy as np

from kiwi.solver.compiled import inlined, inner, kernel
from kiwi.solver.edge_tables import offsets, within
from kiwi.solver.network import Network
from kiwi.solver.presolve.rebuild import rebuild
from kiwi.solver.presolve.reduction import Maps, Reduction

MOST_OPTIONS = 300
"""A node is not joined where more pairs than this would come of it."""
_MOST_GROWTH = 4.0
_MOST_DEGREE = 2


def join(net: Network) -> Reduction:
    """One pass: no node is joined to one that is itself joined to another."""
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
    """The end at each node of the edge over which it is joined to a neighbour, or -1, and for each
    option how many its node will have of it."""
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
    """How many options the neighbour opposite of end h has, and would have with the node at h;
    multiplies them in `pairs` where asked."""
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
    """The options that each option of a joined node stands for: those of the neighbour in order,
    and for each of them the partners of every node joined to it. `ends`: of the joined nodes, by
    their neighbours."""
    last = -1
    block = np.ones(1, dtype=np.int64)
    for h in ends:
        j = net.end_node[h ^ 1]
        mine = pairs[net.option_start[j] : net.option_start[j + 1]]
        if j != last:
            last, block = j, np.ones(len(mine), dtype=np.int64)
            filled = maps.start[j]
            for o in range(len(mine)):
                maps.option[filled : filled + mine[o]] = o
                filled += mine[o]
        _write_member(net, h, mine, block, maps.option[maps.start[net.end_node[h]] :])


@inlined
def _write_member(net, h, pairs, block, out):
    """A joined node's options. Each of its partners of option b is written `block[b]` times in a
    row, and the whole repeated until all pairs of b have one; `block` then grows by its number."""
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
    """For each line at the other end the options at end h that it allows, as starts and a flat
    list."""
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
