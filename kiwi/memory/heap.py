"""The size of XLA's heap for buffers of known live ranges, which is more than is alive at once.

XLA gives every temporary one offset for its whole life. So free memory may lie in pieces that are
too small for the next buffer. XLA's `GlobalDecreasingSizeBestFitHeap` (xla/service/heap_simulator)
places buffers one after the other, each in the smallest gap that is free during its whole life. It
tries two orders and takes the better: by size, then length of life, and the other way round. Of
equal buffers the one defined first comes first. The length of a life counts how many buffers are
allocated and freed meanwhile. A buffer that is written over another one shares its place.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kiwi.memory.timeline import Buffer
from kiwi.solver.compiled import inner, kernel, stable_order, wait_for

if TYPE_CHECKING:
    from kiwi.hlo.units import UnitGraph  # with jax, which a process that compiles loops lacks

NO_BOUND = np.int64(2**62)

HEAP_LOOPS = f"{__name__}:warm_up"


class Lives(NamedTuple):
    """The buffers of a heap; times from `begin` to `last`, both included.

    - `size`: bytes. `rank`: the place of its size among all sizes.
    - `into`: the number of the buffer that is written over it, if it ends just before that one
      begins; -1 for none.
    - `events`: for each time, how many other buffers are allocated and freed then.
    """

    begin: np.ndarray
    last: np.ndarray
    size: np.ndarray
    rank: np.ndarray
    into: np.ndarray
    events: np.ndarray


def allocated_bytes(buffers: Sequence[Buffer], horizon: int, units: "UnitGraph") -> int:
    """The bytes that XLA allocates: the buffers held throughout the step, and a heap for
    the rest."""
    throughout, temporaries = split(buffers, horizon, units)
    return throughout + heap_bytes(temporaries)


def split(buffers: Sequence[Buffer], horizon: int, units: "UnitGraph") -> tuple[int, list[Buffer]]:
    """The bytes that XLA holds throughout, and the buffers that it puts on its heap.

    A result that takes over an argument's buffer belongs to that buffer, which is held throughout.
    """
    takes_over = {units.producer[r] for r in units.aliased_results}
    throughout, heap = 0, []
    for buffer in buffers:
        if buffer.kind == "argument" or (buffer.start == 0 and buffer.end == horizon):
            throughout += buffer.bytes
        elif buffer.kind != "result" or buffer.index not in takes_over or buffer.end < horizon:
            heap.append(buffer)
    return throughout, heap


def heap_bytes(buffers: Sequence[Buffer]) -> int:
    """The size of the heap for these buffers; at least the peak of their sum."""
    if not buffers:
        return 0
    wait_for(HEAP_LOOPS)
    begin, end, size = np.array([(b.start, b.end, b.bytes) for b in buffers], dtype=np.int64).T
    events = np.zeros(end.max(), dtype=np.int64)
    lives = Lives(begin.copy(), end - 1, size.copy(), ranks(size), _writers(buffers), events)
    return int(placed_bytes(lives, NO_BOUND)[0])


def warm_up() -> None:
    """Runs the loops of this module once, which compiles or loads them."""
    heap_bytes([Buffer(0, 1, 8)])


def ranks(size: np.ndarray) -> np.ndarray:
    """For each size its place among the distinct sizes."""
    return np.searchsorted(np.unique(size), size).astype(np.int64)


def _writers(buffers: Sequence[Buffer]) -> np.ndarray:
    """For each buffer the one that is written over it, -1 for none."""
    results: dict[tuple[int, int, int], int] = {}
    for k, b in enumerate(buffers):
        if b.kind == "result":
            results.setdefault((b.start, b.index, b.bytes), k)
    keys = ((b.end, b.overwritten_by, b.bytes) for b in buffers)
    return np.array([results.get(k, -1) if k[1] >= 0 else -1 for k in keys], dtype=np.int64)


@kernel(nogil=True)
def placed_bytes(lives, bound):
    """The heap as XLA builds it, and the buffer at its top. Beyond `bound` any size above it is
    returned."""
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
    """Begin, size and length of life, with buffers that are written over each other as one."""
    begin, size, length = lives.begin.copy(), lives.size.copy(), _lengths(lives)
    for b in range(len(size)):
        # It shares the place of the buffer under it, and is placed when that one is.
        other = lives.into[b]
        if other >= 0 and begin[other] == lives.last[b] + 1:
            begin[other], length[other], size[b] = begin[b], length[b], 0
    return begin, size, length


@inner(nogil=True)
def _lengths(lives):
    """How long each buffer lives, as XLA counts: the number of buffers allocated and freed
    meanwhile."""
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
    """The heap by best fit in an order, and the buffer at its top. It stops where it exceeds
    `bound`.

    Placed buffers are kept in order from the bottom to the top of the heap.
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
