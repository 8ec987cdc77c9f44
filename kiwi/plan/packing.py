"""How much memory XLA's heap needs for buffers of known lives: more than what is alive at once.

XLA gives every temporary one offset for its whole life, so that free memory may lie in pieces
too small for what comes. Its `GlobalDecreasingSizeBestFitHeap` (xla/service/heap_simulator)
places buffers from the largest to the smallest, each in the smallest gap that is free during
its whole life; it tries the order by size and that by length of life, and takes the better.
"""

from collections.abc import Sequence

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
    return min(_heap_bytes(fields[order]) for order in orders)


def _heap_bytes(buffers: np.ndarray) -> int:
    """Best fit in the given order; rows are start, end, bytes."""
    start, end, size = (np.ascontiguousarray(column) for column in buffers.T)
    offset = np.zeros_like(size)
    for k in range(len(size)):
        overlaps = np.flatnonzero((start[:k] < end[k]) & (start[k] < end[:k]))
        order = overlaps[np.argsort(offset[overlaps], kind="stable")]
        offset[k] = _best_gap(offset[order], offset[order] + size[order], size[k])
    return int((offset + size).max())


def _best_gap(low: np.ndarray, high: np.ndarray, size: int) -> int:
    """The start of the smallest gap of at least `size` between the occupied [low, high)."""
    if not len(low):
        return 0
    reached = np.maximum.accumulate(high)
    starts = np.concatenate(([0], reached[:-1]))
    gaps = low - starts
    fits = np.flatnonzero(gaps >= size)
    if not len(fits):
        return int(reached[-1])
    return int(starts[fits[np.argmin(gaps[fits])]])
