"""A segment tree over T points of time: bytes are added to an interval in O(log T), and the peak is
read in O(1).

Node p of the tree holds `top[p] = max(top[2p], top[2p + 1]) + lift[p]`. `lift[p]` is the sum of the
bytes that were added to the whole span of p at once. `top[1]`, at the root, is the peak. Leaves
beyond T keep a value that never becomes the maximum.
"""

from typing import NamedTuple

import numpy as np

from kiwi.solver.compiled import inner, kernel
from kiwi.solver.network import Network

_NEVER = -(2**61)
"""The value of leaves beyond T. Added bytes do not make it the maximum."""


class PeakTree(NamedTuple):
    """The tree over the memory use of one assignment; `top[1]` is its peak in bytes."""

    top: np.ndarray
    lift: np.ndarray


@kernel
def new_tree(usage):
    """Returns the tree over `usage`, the bytes at each time, int64 of shape (T,)."""
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
    """Adds `amount` bytes to the times [begin, end)."""
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
    """Replaces the memory of option `old` of a node by the memory of option `new`. Returns whether
    these are two different options."""
    if old == new:
        return False
    _add_option(net, tree, net.option_start[node] + old, np.int64(-1))
    _add_option(net, tree, net.option_start[node] + new, np.int64(1))
    return True


@inner
def _add_option(net, tree, o, sign):
    for use in range(net.use_start[o], net.use_start[o + 1]):
        add(tree, net.use_begin[use], net.use_end[use], sign * net.use_bytes[use])
