"""A segment tree over time: add bytes to an interval, read the peak, in O(log T).

Node p of the tree holds `top[p] = max(top[2p], top[2p + 1]) + lift[p]`, where `lift[p]` is what was
added to all of its span at once. The root's `top[1]` is the peak. Leaves beyond T stay at a value
that never becomes the maximum.
"""

from typing import NamedTuple

import numpy as np

from kiwi.solver.compiled import inner, kernel
from kiwi.solver.network import Network

_NEVER = -(2**61)


class PeakTree(NamedTuple):
    """The tree over one assignment's memory use; `top[1]` is its peak."""

    top: np.ndarray
    lift: np.ndarray


@kernel
def new_tree(usage):
    """The tree over `usage`, int64 of shape (T,)."""
    leaves = 1
    while leaves < max(1, len(usage)):
        leaves *= 2
    top = np.full(2 * leaves, _NEVER, dtype=np.int64)
    lift = np.zeros(2 * leaves, dtype=np.int64)
    for t in range(len(usage)):
        top[leaves + t] = usage[t]
    for p in range(leaves - 1, 0, -1):
        top[p] = max(top[2 * p], top[2 * p + 1])
    return PeakTree(top, lift)


@kernel
def add(tree: PeakTree, begin, end, amount):
    """Adds `amount` to the times [begin, end)."""
    top, lift = tree
    leaves = len(top) // 2
    left, right = begin + leaves, end + leaves
    while left < right:
        if left & 1:
            top[left] += amount
            lift[left] += amount
            left += 1
        if right & 1:
            right -= 1
            top[right] += amount
            lift[right] += amount
        left >>= 1
        right >>= 1
    for leaf in (begin + leaves, end - 1 + leaves):
        p = leaf >> 1
        while p > 0:
            top[p] = max(top[2 * p], top[2 * p + 1]) + lift[p]
            p >>= 1


@inner
def exchange(net: Network, tree: PeakTree, node, old, new):
    """Replaces the memory of a node's option by that of another; True where they differ."""
    if old == new:
        return False
    _add_option(net, tree, net.option_start[node] + old, np.int64(-1))
    _add_option(net, tree, net.option_start[node] + new, np.int64(1))
    return True


@inner
def _add_option(net, tree, o, sign):
    for use in range(net.use_start[o], net.use_start[o + 1]):
        add(tree, net.use_begin[use], net.use_end[use], sign * net.use_bytes[use])
