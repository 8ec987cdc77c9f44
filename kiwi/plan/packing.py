"""How much memory XLA's heap needs for buffers of known lives: more than what is alive at once.

XLA gives every temporary one offset for its whole life, so that free memory may lie in pieces
too small for what comes. Its `GlobalDecreasingSizeBestFitHeap` (xla/service/heap_simulator)
places buffers from the largest to the smallest, each in the smallest gap that is free during
its whole life; it tries the order by size and that by length of life, and takes the better.
"""

from collections.abc import Sequence

import numba
import numpy as np

from kiwi.solver.problem import Interval


def packed_bytes(buffers: Sequence[Interval]) -> int:
    """The size of the heap for these buffers; at least the peak of their sum."""
    if not buffers:
        return 0
    fields = np.array([(b.start, b.end, b.bytes) for b in buffers], dtype=np.int64)
    start, end, size = fields.T
    length = end - start
    orders = (
        np.lexsort((start, -length, -size)),
        np.lexsort((start, -size, -length)),
    )
    return min(int(_heap_bytes(fields[order])) for order in orders)


@numba.njit(cache=True, nogil=True)
def _heap_bytes(buffers):
    """Best fit in the given order; rows are start, end, bytes."""
    count = len(buffers)
    offset = np.zeros(count, np.int64)
    by_offset = np.zeros(count, np.int64)  # the buffers that have their place, from the bottom
    top = 0
    for k in range(count):
        offset[k] = _best_gap(buffers, offset, by_offset, k)
        top = max(top, offset[k] + buffers[k, 2])
        place = k
        while place > 0 and offset[by_offset[place - 1]] > offset[k]:
            by_offset[place] = by_offset[place - 1]
            place -= 1
        by_offset[place] = k
    return top


@numba.njit(cache=True, nogil=True)
def _best_gap(buffers, offset, by_offset, k):
    """The start of the smallest gap that buffer `k` fits into, between those that live with it."""
    start, end, size = buffers[k]
    reached, best, smallest = 0, -1, 0
    for place in range(k):
        other = by_offset[place]
        if buffers[other, 0] < end and start < buffers[other, 1]:
            gap = offset[other] - reached
            if gap >= size and (best < 0 or gap < smallest):
                best, smallest = reached, gap
            reached = max(reached, offset[other] + buffers[other, 2])
    return best if best >= 0 else reached
