"""Random changes of a sequence: the moves of FastSA (section 2.2, appendix B.3), and aimed moves.

Each move logs its changes through `sequence.change`, so that they can be rolled back. A move that
finds no change that keeps the sequence executable leaves the log empty. A move that adds
computations gets the largest time that could be accepted and adds nothing beyond it.
"""

import math

import numpy as np
from numba import njit

from kiwi.literature.remat.annealing.memory import propagate
from kiwi.literature.remat.annealing.sequence import EMPTY, LOG_LENGTH, change, find_event

ADD, REMOVE, ROTATE = range(3)
"""The moves of FastSA."""
ADD_BEFORE_READER, ROTATE_NEARBY, REMOVE_COPY, ADD_CHAIN, REMOVE_CHAIN = range(3, 8)
"""Aimed moves."""
FLIP_FETCH = 8
"""FastSA's move for offloading."""
MOVE_KINDS = 9
LONGEST_CHAIN = 24
"""The largest number of changes in a chain. A move ends its chain there."""


@njit(cache=True, nogil=True)
def _random_bits(state):
    """Returns the next 64 bits of the state's generator (splitmix64)."""
    state.random[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state.random[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def random_below(state, count):
    """Returns a uniform integer in 0 … count - 1, for count below 2**32."""
    return np.int64(((_random_bits(state) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@njit(cache=True, nogil=True)
def random_unit(state):
    """Returns a uniform number in (0, 1]."""
    return (np.float64(_random_bits(state) >> np.uint64(11)) + 1.0) * 2.0**-53


@njit(cache=True, nogil=True)
def propose(tables, state, kind, most_seconds=math.inf):
    """Makes a change of the given kind; returns whether there was one."""
    state.log_count[0] = 0
    if kind == ADD:
        _add(tables, state, most_seconds)
    elif kind == REMOVE:
        _remove(tables, state, 1)
    elif kind == ROTATE:
        _rotate(tables, state)
    elif kind == ADD_BEFORE_READER:
        _add_before_reader(tables, state, most_seconds)
    elif kind == ROTATE_NEARBY:
        _rotate_nearby(tables, state)
    elif kind == REMOVE_COPY:
        _remove(tables, state, 8)
    elif kind == ADD_CHAIN:
        _add_chain(tables, state, most_seconds)
    elif kind == REMOVE_CHAIN:
        _remove_chain(tables, state)
    else:
        _flip_fetch(tables, state, most_seconds)
    if state.log_count[0] == 0:
        return False
    propagate(state.memory)
    return True


@njit(cache=True, nogil=True)
def _add(tables, state, most_seconds):
    operator = random_below(state, tables.first_fetch)
    if state.seconds[0] + tables.seconds[operator] <= most_seconds:
        _put(tables, state, operator, _random_gap(state))


@njit(cache=True, nogil=True)
def _put(tables, state, operator, target):
    """Computes `operator` at a free position behind its inputs, if it may have one more copy."""
    has_room = state.copies[operator] < tables.most_copies[operator]
    if has_room and target >= _earliest(tables, state, operator):
        change(tables, state, operator, -1, target)


@njit(cache=True, nogil=True)
def _remove(tables, state, draws):
    """Removes a random computation if another copy remains and comes before each reader.

    At most `draws` computations are drawn until one has another copy.
    """
    source = -1
    for _ in range(draws):
        source = state.taken[random_below(state, state.taken_count[0])]
        if _is_copy(tables, state, state.operator_at[source]):
            break
    operator = state.operator_at[source]
    # The position at which results are read lies behind the other copy.
    end = state.operator_at.size - 2
    if _is_copy(tables, state, operator) and _latest(tables, state, source) == end:
        change(tables, state, operator, source, -1)


@njit(cache=True, nogil=True)
def _is_copy(tables, state, operator):
    """Returns whether one run of an operator may go: others remain, or the operator is a fetch."""
    return state.copies[operator] > 1 or operator >= tables.first_fetch


@njit(cache=True, nogil=True)
def _rotate(tables, state):
    """Moves a random computation to a random free position, if its inputs and readers allow it."""
    source = state.taken[random_below(state, state.taken_count[0])]
    target, operator = _random_gap(state), state.operator_at[source]
    if _earliest(tables, state, operator) <= target <= _latest(tables, state, source):
        change(tables, state, operator, source, target)


@njit(cache=True, nogil=True)
def _gap_at_or_before(state, position, floor):
    while position > floor and state.operator_at[position] != EMPTY:
        position -= 1
    return position if position > floor else -1


@njit(cache=True, nogil=True)
def _random_input(tables, state):
    """Returns the position of a random computation and one of its inputs, -1 if it has none."""
    reader = state.taken[random_below(state, state.taken_count[0])]
    operator = state.operator_at[reader]
    first = tables.input_start[operator]
    count = tables.input_start[operator + 1] - first
    return reader, tables.input_values[first + random_below(state, count)] if count else -1


@njit(cache=True, nogil=True)
def _add_before_reader(tables, state, most_seconds):
    """Recomputes an input of a random computation, somewhere between the input's last event and the
    reader."""
    reader, value = _random_input(tables, state)
    if value < 0:
        return
    producer = tables.producer[value]
    if state.seconds[0] + tables.seconds[producer] > most_seconds:
        return
    since = state.events[find_event(tables, state, value, reader) - 1] >> 1
    room = reader - 1 - since
    if room <= 0:
        return
    reach = min(room, 1 + state.operator_at.size // 64) if random_below(state, 4) else room
    near = reader - 1 - random_below(state, reach)
    _put(tables, state, producer, _gap_at_or_before(state, near, since))


@njit(cache=True, nogil=True)
def _rotate_nearby(tables, state):
    """Moves a random computation within the window that its inputs and readers allow, mostly not
    far."""
    source = state.taken[random_below(state, state.taken_count[0])]
    operator = state.operator_at[source]
    low, high = _earliest(tables, state, operator), _latest(tables, state, source)
    if random_below(state, 2):
        reach = 1 + state.operator_at.size // (1 + state.taken_count[0]) * 8
        low, high = max(low, source - reach), min(high, source + reach)
    if high <= low:
        return
    target = low + random_below(state, high - low + 1)
    if state.operator_at[target] == EMPTY:
        change(tables, state, operator, source, target)


@njit(cache=True, nogil=True)
def _flip_fetch(tables, state, most_seconds):
    """Fetches an input of a random computation in front of it, or removes a fetch from there."""
    reader, value = _random_input(tables, state)
    if value < 0:
        return
    since = state.events[find_event(tables, state, value, reader) - 1] >> 1
    before = state.operator_at[since]
    if before >= tables.first_fetch:
        change(tables, state, before, since, -1)
        return
    fetch = tables.fetch_of[value]
    if fetch >= 0 and state.seconds[0] + tables.seconds[fetch] <= most_seconds:
        _put(tables, state, fetch, _gap_at_or_before(state, reader - 1, since))


@njit(cache=True, nogil=True)
def _add_chain(tables, state, most_seconds):
    """Recomputes an input of a computation, and then inputs that would have to be kept for that.

    The log is the queue: the inputs of each added computation are examined in turn.
    """
    _add_before_reader(tables, state, most_seconds)
    k = 0
    while k < state.log_count[0] and state.log_count[0] < LONGEST_CHAIN:
        operator, position = state.log[k, 0], state.log[k, 2]
        k += 1
        for j in range(tables.input_start[operator], tables.input_start[operator + 1]):
            value = tables.input_values[j]
            producer = tables.producer[value]
            if state.log_count[0] >= LOG_LENGTH or random_below(state, 8) == 0:
                continue
            if state.seconds[0] + tables.seconds[producer] > most_seconds:
                continue
            at = find_event(tables, state, value, position)
            end = tables.event_start[value] + state.event_count[value]
            if at + 1 < end and (state.events[at + 1] & 1) == 0:
                continue
            since = state.events[at - 1] >> 1
            _put(tables, state, producer, _gap_at_or_before(state, position - 1, since))


@njit(cache=True, nogil=True)
def _remove_chain(tables, state):
    """Removes a random copy, and then computations whose results nothing reads any more."""
    _remove(tables, state, 8)
    k = 0
    while k < state.log_count[0] and state.log_count[0] < LONGEST_CHAIN:
        operator, position = state.log[k, 0], state.log[k, 1]
        k += 1
        for j in range(tables.input_start[operator], tables.input_start[operator + 1]):
            value = tables.input_values[j]
            before = find_event(tables, state, value, position) - 1
            if before < tables.event_start[value] or (state.events[before] & 1) == 0:
                continue
            source = state.events[before] >> 1
            if state.log_count[0] < LOG_LENGTH and _is_useless(tables, state, source):
                change(tables, state, state.operator_at[source], source, -1)


@njit(cache=True, nogil=True)
def _is_useless(tables, state, position):
    """Returns whether another copy exists and nothing reads what is computed at `position`."""
    operator = state.operator_at[position]
    if not _is_copy(tables, state, operator):
        return False
    for k in range(tables.output_start[operator], tables.output_start[operator + 1]):
        value = tables.output_values[k]
        after = find_event(tables, state, value, position + 1)
        end = tables.event_start[value] + state.event_count[value]
        if after < end and (state.events[after] & 1) == 0:
            return False
    return True


@njit(cache=True, nogil=True)
def _random_gap(state):
    """Returns a random free position, or -1 if none is found soon."""
    for _ in range(64):
        position = random_below(state, state.operator_at.size)
        if state.operator_at[position] == EMPTY:
            return position
    return -1


@njit(cache=True, nogil=True)
def _earliest(tables, state, operator):
    """Returns the first position behind the first computations of all inputs.

    For a fetch, this is the first position behind the first computation of its value.
    """
    if operator >= tables.first_fetch:
        value = tables.output_values[tables.output_start[operator]]
        return (state.events[tables.event_start[value]] >> 1) + 1
    first = 0
    for k in range(tables.input_start[operator], tables.input_start[operator + 1]):
        event = state.events[tables.event_start[tables.input_values[k]]]
        first = max(first, (event >> 1) + 1)
    return first


@njit(cache=True, nogil=True)
def _latest(tables, state, source):
    """Returns the last position to which the computation at `source` may move.

    If the computation is the first event of one of its values, it stays before the read or the
    fetch that follows.
    """
    operator, last = state.operator_at[source], state.operator_at.size - 2
    for k in range(tables.output_start[operator], tables.output_start[operator + 1]):
        value = tables.output_values[k]
        at = tables.event_start[value]
        if state.events[at] == 2 * source + 1 and state.event_count[value] > 1:
            following = state.events[at + 1]
            is_fetch = state.operator_at[following >> 1] >= tables.first_fetch
            if (following & 1) == 0 or is_fetch:
                last = min(last, (following >> 1) - 1)
    return last
