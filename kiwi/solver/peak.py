"""A segment tree over time: add bytes to an interval, read the peak, in O(log T).

Node p of the tree holds `top[p] = max(top[2p], top[2p + 1]) + lift[p]`, where `lift[p]` is what was
added to all of its span at once. The root's `top[1]` is the peak. Leaves beyond T stay at a value
that never becomes the maximum.
"""

import numba
import numpy as np

_NEVER = -(2**61)


@numba.njit(cache=True)
def new_tree(usage):
    """The tree (top, lift) over `usage`, int64 of shape (T,)."""
    leaves = 1
    while leaves < max(1, len(usage)):
        leaves *= 2
    top = np.full(2 * leaves, _NEVER, dtype=np.int64)
    lift = np.zeros(2 * leaves, dtype=np.int64)
    for t in range(len(usage)):
        top[leaves + t] = usage[t]
    for p in range(leaves - 1, 0, -1):
        top[p] = max(top[2 * p], top[2 * p + 1])
    return top, lift


@numba.njit(cache=True)
def add(top, lift, begin, end, amount):
    """Adds `amount` to the times [begin, end)."""
    leaves = len(top) // 2
    low, high = begin + leaves, end + leaves
    left, right = low, high
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
    _rebuild(top, lift, low)
    _rebuild(top, lift, high - 1)


@numba.njit(cache=True)
def _rebuild(top, lift, leaf):
    p = leaf >> 1
    while p > 0:
        top[p] = max(top[2 * p], top[2 * p + 1]) + lift[p]
        p >>= 1


@numba.njit(cache=True)
def peak_time(top):
    """A time at which the peak is reached."""
    leaves = len(top) // 2
    p = 1
    while p < leaves:
        p = 2 * p if top[2 * p] >= top[2 * p + 1] else 2 * p + 1
    return p - leaves


@numba.njit(cache=True)
def add_option(net, top, lift, option, sign):
    """Adds (sign 1) or removes (sign -1) the intervals of a flat option."""
    for use in range(net.use_start[option], net.use_start[option + 1]):
        add(top, lift, net.use_begin[use], net.use_end[use], sign * net.use_bytes[use])
