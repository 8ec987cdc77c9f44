"""The size of XLA's heap for buffers with known live ranges. It is at least the peak of the live
bytes.

XLA gives every temporary buffer one offset for its whole life, so free memory may consist of gaps
that are too small for the next buffer. XLA's `GlobalDecreasingSizeBestFitHeap`
(xla/service/heap_simulator) places buffers one after the other, each in the smallest gap that is
free during the buffer's whole life. It tries two orders, by size and then length of life, and the
reverse, and takes the smaller heap. Among equal buffers, the one defined first is placed first. The
length of a life is the number of buffers that are allocated or freed meanwhile. A buffer that is
written over another buffer shares its place.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kiwi.memory.timeline import Buffer
from kiwi.solver.compiled import inner, kernel, stable_order, wait_for

if TYPE_CHECKING:
    from kiwi.hlo.units import UnitGraph  # It imports jax; processes that compile loops do not.

NO_BOUND = np.int64(2**62)
"""A bound that no heap exceeds."""

HEAP_LOOPS = f"{__name__}:warm_up"
"""The function that compiles the loops of this module, as `kiwi.solver.compiled` names it."""


class Lives(NamedTuple):
    """The buffers of a heap, as arrays. The last field is by time.

    - `begin`, `last`: the first and the last time at which the buffer is alive, both included.
    - `size`: bytes. `rank`: the index of the size in the sorted list of distinct sizes.
    - `into`: the index of the buffer that is written over this buffer if this buffer ends just
      before that one begins; -1 for none.
    - `events`: for each time, the number of other buffers that are allocated or freed then.
    """

    begin: np.ndarray
    last: np.ndarray
    size: np.ndarray
    rank: np.ndarray
    into: np.ndarray
    events: np.ndarray


def allocated_bytes(buffers: Sequence[Buffer], horizon: int, units: "UnitGraph") -> int:
    """Returns the bytes that XLA allocates: the buffers that are held throughout the step, and a
    heap for the others. `horizon`: the number of points of time."""
    throughout, temporaries = split(buffers, horizon, units)
    return throughout + heap_bytes(temporaries)


def split(buffers: Sequence[Buffer], horizon: int, units: "UnitGraph") -> tuple[int, list[Buffer]]:
    """Returns the bytes that XLA holds throughout the step, and the buffers on its heap.

    A result that takes over an argument's buffer is in neither: the argument's bytes include it.
    """
    takes_over = {units.producer[result] for result in units.aliased_results}
    throughout, heap = 0, []
    for buffer in buffers:
        if buffer.kind == "argument" or (buffer.start == 0 and buffer.end == horizon):
            throughout += buffer.bytes
        elif buffer.kind != "result" or buffer.index not in takes_over or buffer.end < horizon:
            heap.append(buffer)
    return throughout, heap


def heap_bytes(buffers: Sequence[Buffer]) -> int:
    """Returns the size in bytes of the heap for these buffers, at least the peak of their sum."""
    if not buffers:
        return 0
    wait_for(HEAP_LOOPS)
    begin, end, size = np.array(
        [(buffer.start, buffer.end, buffer.bytes) for buffer in buffers], dtype=np.int64
    ).T
    events = np.zeros(end.max(), dtype=np.int64)
    lives = Lives(begin.copy(), end - 1, size.copy(), ranks(size), _writers(buffers), events)
    return int(placed_bytes(lives, NO_BOUND)[0])


def warm_up() -> None:
    """Runs the loops of this module once, so that numba compiles or loads them."""
    heap_bytes([Buffer(0, 1, 8)])


def ranks(size: np.ndarray) -> np.ndarray:
    """Returns, for each size, its index in the sorted list of distinct sizes."""
    return np.searchsorted(np.unique(size), size).astype(np.int64)


def _writers(buffers: Sequence[Buffer]) -> np.ndarray:
    """Returns, for each buffer, the index of the buffer that is written over it; -1 for none."""
    results: dict[tuple[int, int, int], int] = {}
    for k, buffer in enumerate(buffers):
        if buffer.kind == "result":
            results.setdefault((buffer.start, buffer.index, buffer.bytes), k)
    keys = ((buffer.end, buffer.overwritten_by, buffer.bytes) for buffer in buffers)
    return np.array([results.get(k, -1) if k[1] >= 0 else -1 for k in keys], dtype=np.int64)


@kernel(nogil=True)
def placed_bytes(lives, bound):
    """Returns the size of the heap as XLA builds it, and the first and last time of the buffer at
    its top. If the size exceeds `bound`, any size above `bound` may be returned."""
    begin, size, length = _joined(lives)
    count, times = len(size), len(lives.events)
    by_size, by_length = np.empty(count, np.int64), np.empty(count, np.int64)
    for b in range(count):
        early = times - begin[b]
        by_size[b] = -(((lives.rank[b] << 20 | length[b]) << 20) | early)
        by_length[b] = -(((length[b] << 20 | lives.rank[b]) << 20) | early)
    heap, top = _best_fit(stable_order(by_size), begin, lives.last, size, bound)
    other_order = stable_order(by_length)
    other_heap, other_top = _best_fit(other_order, begin, lives.last, size, bound)
    if other_heap < heap:
        heap, top = other_heap, other_top
    return heap, begin[top], lives.last[top]


@inner(nogil=True)
def _joined(lives):
    """Returns begin, size and length of life of all buffers. Of buffers that are written over each
    other, the last represents all: it has the first one's begin and length, and the others have
    size 0."""
    begin, size, length = lives.begin.copy(), lives.size.copy(), _lengths(lives)
    for b in range(len(size)):
        # XLA places both together, in the turn of the overwritten buffer.
        other = lives.into[b]
        if other >= 0 and begin[other] == lives.last[b] + 1:
            begin[other], length[other], size[b] = begin[b], length[b], 0
    return begin, size, length


@inner(nogil=True)
def _lengths(lives):
    """Returns each buffer's length of life as XLA counts it: the number of buffers that are
    allocated or freed meanwhile."""
    times = len(lives.events)
    starts, allocated = np.zeros(times + 1, np.int64), np.zeros(times, np.int64)
    for t in range(times):
        starts[t + 1] = lives.events[t]
    for b in range(len(lives.size)):
        if lives.size[b]:
            allocated[lives.begin[b]] += 1
            starts[lives.begin[b] + 1] += 1
            starts[lives.last[b] + 1] += 1
    for t in range(times):
        starts[t + 1] += starts[t]
    lengths = np.empty(len(lives.size), np.int64)
    for b in range(len(lives.size)):
        begin, last = lives.begin[b], lives.last[b]
        lengths[b] = starts[last] + allocated[last] - starts[begin]
    return lengths


@inner(nogil=True)
def _best_fit(order, begin, last, size, bound):
    """Returns the size of the heap by best fit in `order`, and the index of the buffer at its top.
    Stops as soon as the size exceeds `bound`.

    `starts`, `ends`, `bottoms` and `tops` describe the placed buffers, from the bottom of the heap
    to its top.
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
