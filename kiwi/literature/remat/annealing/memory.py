"""Peak memory of a changing sequence: an add-max segment tree over differences.

Memory along the sequence is the prefix sum of `change`. Adding `x` on the range [l, r) is then
two point updates, and the root holds the largest prefix sum: the operations of the add-max
segment tree of FastSA (Imanishi et al. 2023, section 2.1.1), each in O(log T).

Each node stores the sum of its leaves and the largest prefix within it; a leaf's prefix
includes the temporary memory at its position. Point updates are first collected and then
propagated once per touched leaf.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from kiwi.literature.remat.annealing.tables import Floats


class Memory(NamedTuple):
    """The tree: node `i` has children `2 i` and `2 i + 1`; leaf of position `t` is `T + t`.

    `total`, `highest` and `offset` (the temporary memory at each position) are in bytes;
    `touched`/`stamp`/`count` collect the leaves to propagate.
    """

    total: Floats
    highest: Floats
    offset: Floats
    touched: npt.NDArray[np.int32]
    stamp: npt.NDArray[np.bool_]
    count: npt.NDArray[np.int64]


def make_memory(positions: int) -> Memory:
    """An empty tree over `positions` (a power of two) positions."""
    return Memory(
        np.zeros(2 * positions),
        np.zeros(2 * positions),
        np.zeros(positions),
        np.zeros(positions, np.int32),
        np.zeros(positions, np.bool_),
        np.zeros(1, np.int64),
    )


@njit(cache=True, nogil=True)
def touch(memory, position):
    """Marks a leaf for propagation."""
    if not memory.stamp[position]:
        memory.stamp[position] = True
        memory.touched[memory.count[0]] = position
        memory.count[0] += 1


@njit(cache=True, nogil=True)
def add_on_range(memory, left, right, amount_bytes):
    """Adds to the memory of positions [left, right), up to propagation."""
    positions = memory.offset.size
    memory.total[positions + left] += amount_bytes
    touch(memory, left)
    if right < positions:
        memory.total[positions + right] -= amount_bytes
        touch(memory, right)


@njit(cache=True, nogil=True)
def propagate(memory):
    """Carries all marked leaves to the root."""
    positions = memory.offset.size
    total, highest = memory.total, memory.highest
    for k in range(memory.count[0]):
        position = memory.touched[k]
        memory.stamp[position] = False
        node = positions + position
        highest[node] = total[node] + memory.offset[position]
        node >>= 1
        while node >= 1:
            left = 2 * node
            total[node] = total[left] + total[left + 1]
            highest[node] = max(highest[left], total[left] + highest[left + 1])
            node >>= 1
    memory.count[0] = 0


@njit(cache=True, nogil=True)
def peak_bytes(memory):
    """The largest memory over all positions."""
    return memory.highest[1]
