"""A sequence of computations with gaps, under insertion and removal of single computations.

Positions 0 … T - 1 hold an operator or nothing (`EMPTY`; a no-op of FastSA). For each value the
state keeps its events in the order of their positions. An event is a computation or a read. A live
range runs from a computation to the last read before the next computation. Inserting or removing
one event extends, shrinks, splits or merges at most one live range (FastSA, section 2.2.1). Memory
therefore changes on one range of positions per value.

Events are coded `2 * position + 1` for a computation and `2 * position` for a read. The last
position is kept for the reads that hold the results of the graph until the end.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from kiwi.literature.remat.annealing.memory import (
    Memory,
    add_on_range,
    make_memory,
    propagate,
    touch,
)
from kiwi.literature.remat.annealing.tables import Ints, Tables

EMPTY = -1
"""The entry of a position without an operator."""
RESERVED = -2
"""The entry of the last position, at which results are read."""
LOG_LENGTH = 64
"""The largest number of single changes in one move."""


class State(NamedTuple):
    """A sequence and all that is derived from it.

    - `operator_at[t]`: the operator at position `t`.
    - `taken[:taken_count[0]]`: the occupied positions; `place_of[t]`: the place of `t` in that
      list.
    - `copies`: the number of computations of each operator.
    - `event_count`, `events`: the events of each value (`Tables.event_start`).
    - `memory`: the memory along the sequence.
    - `seconds[0]`: the time of all computations.
    - `random[0]`: the generator's state.
    - `log[:log_count[0]]`: the changes of the last move as (operator, source or -1, target or -1).
    """

    operator_at: Ints
    taken: Ints
    place_of: Ints
    taken_count: npt.NDArray[np.int64]
    copies: Ints
    event_count: Ints
    events: Ints
    memory: Memory
    seconds: npt.NDArray[np.float64]
    random: npt.NDArray[np.uint64]
    log: Ints
    log_count: npt.NDArray[np.int64]


def make_state(tables: Tables, positions: int, seed: int) -> State:
    """Returns a state without computations; `positions` must be a power of two."""
    operator_count, value_count = tables.seconds.size, tables.size.size
    return State(
        np.full(positions, EMPTY, np.int32),
        np.zeros(positions, np.int32),
        np.zeros(positions, np.int32),
        np.zeros(1, np.int64),
        np.zeros(operator_count, np.int32),
        np.zeros(value_count, np.int32),
        np.zeros(int(tables.event_start[-1]), np.int32),
        make_memory(positions),
        np.zeros(1),
        np.array([seed * 2 + 0x9E3779B97F4A7C15], np.uint64),
        np.zeros((LOG_LENGTH, 3), np.int32),
        np.zeros(1, np.int64),
    )


@njit(cache=True, nogil=True)
def load(tables, state, steps):
    """Fills a new state with the sequence `steps`, spread evenly over the positions."""
    positions = state.operator_at.size
    state.operator_at[positions - 1] = RESERVED
    for k in range(steps.size):
        insert(tables, state, steps[k], (k + 1) * (positions - 1) // (steps.size + 1))
    for value in range(tables.size.size):
        if tables.is_result[value]:
            _change_event(tables, state, value, positions - 1, False, 1.0)
    propagate(state.memory)


@njit(cache=True, nogil=True)
def steps_of(state):
    """Returns the sequence without its gaps."""
    steps = np.empty(state.taken_count[0], np.int32)
    count = 0
    for operator in state.operator_at:
        if operator >= 0:
            steps[count] = operator
            count += 1
    return steps


@njit(cache=True, nogil=True)
def find_event(tables, state, value, position):
    """Returns the index in `events` of the first event of `value` at `position` or later."""
    low = tables.event_start[value]
    high = low + state.event_count[value]
    code = 2 * position
    while low < high:
        middle = (low + high) >> 1
        if state.events[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _open_event(tables, state, value, at, code):
    end = tables.event_start[value] + state.event_count[value]
    while end > at:
        state.events[end] = state.events[end - 1]
        end -= 1
    state.events[at] = code
    state.event_count[value] += 1


@njit(cache=True, nogil=True)
def _close_event(tables, state, value, at):
    end = tables.event_start[value] + state.event_count[value] - 1
    for k in range(at, end):
        state.events[k] = state.events[k + 1]
    state.event_count[value] -= 1


@njit(cache=True, nogil=True)
def _reading_change(tables, state, value, at, end, position, sign):
    """Changes memory for a read between the events `at - 1` and `at`.

    `end` is one past the value's last event. `sign` is 1.0 if the read is added, -1.0 if removed.
    """
    read_later = at < end and (state.events[at] & 1) == 0
    if not read_later and at > tables.event_start[value]:
        before = state.events[at - 1] >> 1
        add_on_range(state.memory, before + 1, position + 1, sign * tables.size[value])


@njit(cache=True, nogil=True)
def _computation_change(tables, state, value, at, end, position, sign):
    """Changes memory for a computation between the events `at - 1` and `at`.

    Within a live range, the computation frees the value from the last read until `position`. As the
    first event of its value, the computation starts the live range of the reads that follow.
    Otherwise it adds a live range of one position.
    """
    size = tables.size[value]
    read_later = at < end and (state.events[at] & 1) == 0
    if not read_later:
        add_on_range(state.memory, position, position + 1, sign * size)
    elif at > tables.event_start[value]:
        before = state.events[at - 1] >> 1
        add_on_range(state.memory, before + 1, position, -sign * size)
    else:
        last = at
        while last + 1 < end and (state.events[last + 1] & 1) == 0:
            last += 1
        add_on_range(state.memory, position, (state.events[last] >> 1) + 1, sign * size)


@njit(cache=True, nogil=True)
def _change_event(tables, state, value, position, is_computation, sign):
    """Adds an event (`sign` 1.0) or removes it (-1.0); memory is not yet propagated."""
    at = find_event(tables, state, value, position)
    if sign < 0.0:
        _close_event(tables, state, value, at)
    end = tables.event_start[value] + state.event_count[value]
    if is_computation:
        _computation_change(tables, state, value, at, end, position, sign)
    else:
        _reading_change(tables, state, value, at, end, position, sign)
    if sign > 0.0:
        _open_event(tables, state, value, at, 2 * position + is_computation)


@njit(cache=True, nogil=True)
def _change_events(tables, state, operator, position, sign):
    for k in range(tables.input_start[operator], tables.input_start[operator + 1]):
        _change_event(tables, state, tables.input_values[k], position, False, sign)
    for k in range(tables.output_start[operator], tables.output_start[operator + 1]):
        _change_event(tables, state, tables.output_values[k], position, True, sign)
    state.copies[operator] += sign
    state.seconds[0] += sign * tables.seconds[operator]
    state.memory.offset[position] = tables.temporary[operator] if sign > 0.0 else 0.0
    touch(state.memory, position)


@njit(cache=True, nogil=True)
def insert(tables, state, operator, position):
    """Computes `operator` at a free position; memory is not yet propagated."""
    _change_events(tables, state, operator, position, 1.0)
    state.operator_at[position] = operator
    state.place_of[position] = state.taken_count[0]
    state.taken[state.taken_count[0]] = position
    state.taken_count[0] += 1


@njit(cache=True, nogil=True)
def remove(tables, state, position):
    """Removes the computation at `position`, which undoes `insert`."""
    _change_events(tables, state, state.operator_at[position], position, -1.0)
    state.operator_at[position] = EMPTY
    state.taken_count[0] -= 1
    moved = state.taken[state.taken_count[0]]
    state.taken[state.place_of[position]] = moved
    state.place_of[moved] = state.place_of[position]


@njit(cache=True, nogil=True)
def change(tables, state, operator, source, target):
    """Adds, removes or moves one computation, and logs the change.

    `source` is -1 if the computation is added, `target` is -1 if it is removed.
    """
    entry = state.log[state.log_count[0]]
    entry[0], entry[1], entry[2] = operator, source, target
    state.log_count[0] += 1
    _move(tables, state, operator, source, target)


@njit(cache=True, nogil=True)
def _move(tables, state, operator, source, target):
    if source >= 0:
        remove(tables, state, source)
    if target >= 0:
        insert(tables, state, operator, target)


@njit(cache=True, nogil=True)
def roll_back(tables, state):
    """Undoes the logged changes. The log stays, for `roll_forward`."""
    for k in range(state.log_count[0] - 1, -1, -1):
        operator, source, target = state.log[k]
        _move(tables, state, operator, target, source)
    propagate(state.memory)


@njit(cache=True, nogil=True)
def roll_forward(tables, state):
    """Makes the logged changes again."""
    for k in range(state.log_count[0]):
        operator, source, target = state.log[k]
        _move(tables, state, operator, source, target)
    propagate(state.memory)
