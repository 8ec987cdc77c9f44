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

_NO_BOUND = 2**62


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
    return min(int(placed_bytes(order, start, end - 1, size, _NO_BOUND)[0]) for order in orders)


@numba.njit(cache=True, nogil=True)
def placed_bytes(order, begin, last, size, bound):
    """The heap by best fit in an order, and the buffer at its top; ends where it exceeds `bound`.

    Buffers live from `begin` to `last`, both included. Those that have their place are kept from
    the bottom to the top of the heap.
    """
    count, top, highest, placed = len(order), 0, 0, 0
    starts, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    bottoms, tops = np.empty(count, np.int64), np.empty(count, np.int64)
    for b in order:
        if not size[b]:
            continue
        reached, best, smallest = 0, -1, 0
        for k in range(placed):
            if starts[k] <= last[b] and begin[b] <= ends[k]:
                gap = bottoms[k] - reached
                if gap >= size[b] and (best < 0 or gap < smallest):
                    best, smallest = reached, gap
                reached = max(reached, tops[k])
        best = best if best >= 0 else reached
        if best + size[b] > top:
            top, highest = best + size[b], b
        if top > bound:
            return top, highest
        k = placed
        while k > 0 and bottoms[k - 1] > best:
            starts[k], ends[k] = starts[k - 1], ends[k - 1]
            bottoms[k], tops[k] = bottoms[k - 1], tops[k - 1]
            k -= 1
        starts[k], ends[k], bottoms[k], tops[k] = begin[b], last[b], best, best + size[b]
        placed += 1
    return top, highest
