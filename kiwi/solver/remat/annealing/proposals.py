"""Random changes of a sequence: the three moves of FastSA, and three that aim.

A proposal is (operator, source, target): the computation of `operator` at position `source` is
removed (-1: nothing is removed) and put at `target` (-1: nothing is put).
"""

from numba import njit

from kiwi.solver.remat.annealing.moves import (
    can_insert,
    can_remove,
    can_rotate,
    random_below,
    random_gap,
)
from kiwi.solver.remat.annealing.sequence import EMPTY, find_event

ADD, REMOVE, ROTATE, ADD_BEFORE_READER, ROTATE_NEARBY, REMOVE_COPY = range(6)
MOVE_KINDS = 6
NOTHING = (-1, -1, -1)


@njit(cache=True, nogil=True)
def propose(tables, state, kind):
    """A valid change of the given kind, or `NOTHING`."""
    if kind == ADD:
        return _add(tables, state)
    if kind == REMOVE:
        return _remove(tables, state, 1)
    if kind == ROTATE:
        source = state.taken[random_below(state, state.taken_count[0])]
        return _rotate(tables, state, source, random_gap(state))
    if kind == ADD_BEFORE_READER:
        return _add_before_reader(tables, state)
    if kind == ROTATE_NEARBY:
        return _rotate_nearby(tables, state)
    return _remove(tables, state, 8)


@njit(cache=True, nogil=True)
def _add(tables, state):
    operator = random_below(state, tables.seconds.size)
    target = random_gap(state)
    if target < 0 or not can_insert(tables, state, operator, target):
        return -1, -1, -1
    return operator, -1, target


@njit(cache=True, nogil=True)
def _remove(tables, state, draws):
    source = -1
    for _ in range(draws):
        source = state.taken[random_below(state, state.taken_count[0])]
        if state.copies[state.operator_at[source]] > 1:
            break
    if not can_remove(tables, state, source):
        return -1, -1, -1
    return state.operator_at[source], source, -1


@njit(cache=True, nogil=True)
def _rotate(tables, state, source, target):
    if target < 0 or not can_rotate(tables, state, source, target):
        return -1, -1, -1
    return state.operator_at[source], source, target


@njit(cache=True, nogil=True)
def _gap_at_or_before(state, position, floor):
    while position > floor and state.operator_at[position] != EMPTY:
        position -= 1
    return position if position > floor else -1


@njit(cache=True, nogil=True)
def _add_before_reader(tables, state):
    """Recomputes an input of a random computation somewhere since its last event."""
    reader = state.taken[random_below(state, state.taken_count[0])]
    operator = state.operator_at[reader]
    first = tables.input_start[operator]
    count = tables.input_start[operator + 1] - first
    if count == 0:
        return -1, -1, -1
    value = tables.input_values[first + random_below(state, count)]
    at = find_event(tables, state, value, reader)
    since = state.events[at - 1] >> 1
    room = reader - 1 - since
    if room <= 0:
        return -1, -1, -1
    spread = 1 + state.operator_at.size // 64 if random_below(state, 4) else room
    target = _gap_at_or_before(state, reader - 1 - random_below(state, min(room, spread)), since)
    if target < 0 or not can_insert(tables, state, tables.producer[value], target):
        return -1, -1, -1
    return tables.producer[value], -1, target


@njit(cache=True, nogil=True)
def _rotate_nearby(tables, state):
    """Moves a random computation within the window that its operands leave it, mostly not far."""
    source = state.taken[random_below(state, state.taken_count[0])]
    operator = state.operator_at[source]
    low, high = 0, state.operator_at.size - 2
    for k in range(tables.input_start[operator], tables.input_start[operator + 1]):
        first = state.events[tables.event_start[tables.input_values[k]]] >> 1
        low = max(low, first + 1)
    for k in range(tables.output_start[operator], tables.output_start[operator + 1]):
        value = tables.output_values[k]
        at = tables.event_start[value]
        if state.events[at] == 2 * source + 1 and state.event_count[value] > 1:
            code = state.events[at + 1]
            if (code & 1) == 0:
                high = min(high, (code >> 1) - 1)
    if random_below(state, 2):
        reach = 1 + state.operator_at.size // (1 + state.taken_count[0]) * 8
        low, high = max(low, source - reach), min(high, source + reach)
    if high <= low:
        return -1, -1, -1
    target = low + random_below(state, high - low + 1)
    if state.operator_at[target] != EMPTY:
        return -1, -1, -1
    return operator, source, target
