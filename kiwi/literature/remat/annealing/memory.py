"""The peak memory of a changing sequence: an add-max segment tree over differences.

Memory along the sequence is the prefix sum of its changes. Adding `x` on the range [l, r) is then
two point updates, and the root holds the largest prefix sum. These are the operations of the
add-max segment tree of FastSA (Imanishi et al. 2023, section 2.1.1), each in O(log T).

Each node stores the sum of its leaves and the largest prefix sum within it. The prefix sum at a
leaf includes the temporary memory at its position. Point updates are first collected and then
propagated once per touched leaf.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from kiwi.literature.remat.annealing.tables import Floats


class Memory(NamedTuple):
    """The tree. Node `i` has children `2 i` and `2 i + 1`. Position `t` has the leaf `T + t`.

    - `total`: the sum of each node's leaves, in bytes.
    - `highest`: the largest prefix sum within each node, in bytes.
    - `offset`: the temporary memory at each position, in bytes.
    - `touched`, `stamp`, `count`: the leaves to propagate, whether a leaf is among them, and their
      number.
    """

    total: Floats
    highest: Floats
    offset: Floats
    touched: npt.NDArray[np.int32]
    stamp: npt.NDArray[np.bool_]
    count: npt.NDArray[np.int64]


def make_memory(positions: int) -> Memory:
    """Returns an empty tree over `positions` positions, a power of two."""
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
    """Marks the leaf of a position for propagation."""
    if not memory.stamp[position]:
        memory.stamp[position] = True
        memory.touched[memory.count[0]] = position
        memory.count[0] += 1


@njit(cache=True, nogil=True)
def add_on_range(memory, left, right, amount_bytes):
    """Adds to the memory of positions [left, right); `propagate` carries the change to the root."""
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
    """Returns the largest memory over all positions."""
    return memory.highest[1]
