"""Peak memory of a changing sequence: an add-max segment tree over differences.

Memory along the sequence is the prefix sum of `change`. Adding `x` on the range [l, r) is then
two point updates, and the root holds the largest prefix sum: the operations of the add-max
segment tree of FastSA (Imanishi et al. 2023, section 2.1.1), each in O(log T).

Each node stores the sum of its leaves and the largest prefix within it; a leaf's prefix
includes the temporary memory at its position. The log-add-exp variant (appendix C.2) carries a
second, smooth maximum in the same way: `soft = log2(2**left + 2**right)`, in units of `scale`
bytes, in which positions without an operator do not count. It pulls on all peaks at once, not
only on the highest.

Point updates are first collected and then propagated once per touched leaf.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

Floats = npt.NDArray[np.float64]

ABSENT = -1e30
"""Log-domain weight of a position without an operator."""


class Memory(NamedTuple):
    """The tree: node `i` has children `2 i` and `2 i + 1`; leaf of position `t` is `T + t`.

    `total` and `highest` are in bytes, `soft` in units of `scale[0]` bytes (0: no soft
    maximum). `offset` and `present` describe positions; `touched`/`stamp`/`count` collect the
    leaves to propagate.
    """

    total: Floats
    highest: Floats
    soft: Floats
    offset: Floats
    present: npt.NDArray[np.bool_]
    scale: Floats
    touched: npt.NDArray[np.int32]
    stamp: npt.NDArray[np.bool_]
    count: npt.NDArray[np.int64]


def make_memory(positions: int, soft_scale_bytes: float) -> Memory:
    """An empty tree over `positions` (a power of two) positions."""
    return Memory(
        np.zeros(2 * positions),
        np.zeros(2 * positions),
        np.full(2 * positions, ABSENT),
        np.zeros(positions),
        np.zeros(positions, np.bool_),
        np.array([soft_scale_bytes]),
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
def log_add_exp(a, b):
    """log2(2**a + 2**b), without overflow."""
    if a < b:
        a, b = b, a
    if a - b > 50.0:
        return a
    return a + np.log2(1.0 + np.exp2(b - a))


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
    if memory.scale[0] > 0.0:
        propagate_soft(memory)
    memory.count[0] = 0


@njit(cache=True, nogil=True)
def propagate_soft(memory):
    """Carries the smooth maximum of all marked leaves to the root."""
    positions = memory.offset.size
    soft, total, scale = memory.soft, memory.total, memory.scale[0]
    for k in range(memory.count[0]):
        position = memory.touched[k]
        node = positions + position
        held = (total[node] + memory.offset[position]) / scale
        soft[node] = held if memory.present[position] else ABSENT
        node >>= 1
        while node >= 1:
            left = 2 * node
            soft[node] = log_add_exp(soft[left], total[left] / scale + soft[left + 1])
            node >>= 1


@njit(cache=True, nogil=True)
def peak_bytes(memory):
    """The largest memory over all positions."""
    return memory.highest[1]


@njit(cache=True, nogil=True)
def guiding_peak_bytes(memory):
    """The peak that the annealer lowers: the smooth maximum where there is one."""
    if memory.scale[0] > 0.0:
        return memory.soft[1] * memory.scale[0]
    return memory.highest[1]
