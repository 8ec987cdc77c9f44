"""Which changes of a sequence keep it executable, and random draws (FastSA, section 2.2)."""

import numpy as np
from numba import njit

from kiwi.solver.remat.annealing.sequence import EMPTY


@njit(cache=True, nogil=True)
def random_bits(state):
    """The next 64 bits of the state's generator (splitmix64)."""
    state.random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state.random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def random_below(state, count):
    """A uniform integer in 0 … count - 1, for count below 2**32."""
    return np.int64(((random_bits(state) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@njit(cache=True, nogil=True)
def random_unit(state):
    """A uniform number in (0, 1]."""
    return (np.float64(random_bits(state) >> np.uint64(11)) + 1.0) * 2.0**-53


@njit(cache=True, nogil=True)
def random_gap(state):
    """A random free position, or -1 if none is found soon."""
    for _ in range(64):
        position = random_below(state, state.operator_at.size)
        if state.operator_at[position] == EMPTY:
            return position
    return -1


@njit(cache=True, nogil=True)
def earliest(tables, state, operator):
    """The first position behind the first computations of all inputs."""
    first = 0
    for k in range(tables.input_start[operator], tables.input_start[operator + 1]):
        event = state.events[tables.event_start[tables.input_values[k]]]
        first = max(first, (event >> 1) + 1)
    return first


@njit(cache=True, nogil=True)
def latest(tables, state, source):
    """The last position that the computation at `source` may move to: before the first reader."""
    operator, last = state.operator_at[source], state.operator_at.size - 2
    for k in range(tables.output_start[operator], tables.output_start[operator + 1]):
        value = tables.output_values[k]
        at = tables.event_start[value]
        if state.events[at] == 2 * source + 1 and state.event_count[value] > 1:
            following = state.events[at + 1]
            if (following & 1) == 0:
                last = min(last, (following >> 1) - 1)
    return last


@njit(cache=True, nogil=True)
def can_insert(tables, state, operator, position):
    """Whether all inputs are computed before `position`, and there is room for one more copy."""
    if state.copies[operator] >= tables.most_copies[operator]:
        return False
    return position >= earliest(tables, state, operator)


@njit(cache=True, nogil=True)
def can_remove(tables, state, position):
    """Whether another copy remains, and each reader still has a computation before it."""
    if state.copies[state.operator_at[position]] < 2:
        return False
    # The end, at which results are read, lies behind the other copy.
    return latest(tables, state, position) == state.operator_at.size - 2


@njit(cache=True, nogil=True)
def can_rotate(tables, state, source, target):
    """Whether the computation at `source` may move to the free position `target`."""
    operator = state.operator_at[source]
    return earliest(tables, state, operator) <= target <= latest(tables, state, source)
