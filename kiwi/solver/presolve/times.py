"""Drops points of time t at which memory can never bind. There are two cases:

(a) The largest options of all nodes together stay within the limit at t.
(b) Another time s covers t: no assignment holds more at t than at s, that is,
    sum over nodes of max over options of (bytes[o, t] - bytes[o, s]) <= 0.
    Each time is compared with the last kept time before it, in both directions.
"""

from dataclasses import replace

import numpy as np

from kiwi.solver.compiled import inlined, inner, kernel, stable_order
from kiwi.solver.edge_tables import offsets, owners
from kiwi.solver.network import NO_LIMIT_BYTES, Network


def drop_times(net: Network) -> Network:
    """Returns `net` with fewer times. The same assignments are feasible, at the same cost."""
    if net.limit_bytes >= NO_LIMIT_BYTES or not len(net.times):
        return net
    events = _events(net, np.concatenate((net.use_begin, net.use_end)), len(net.times))
    is_kept = _kept_times(len(net.times), net.limit_bytes, net.option_start, *events)
    earlier = offsets(is_kept)  # The number of kept times before each time.
    begin, end = earlier[net.use_begin], earlier[net.use_end]
    spans_kept_time = begin < end
    spans = (
        owners(net.use_start)[spans_kept_time],
        begin[spans_kept_time],
        end[spans_kept_time],
        net.use_bytes[spans_kept_time],
    )
    return replace(net, times=net.times[is_kept], **summed_uses(*spans, net.option_count))


def summed_uses(
    owner: np.ndarray, begin: np.ndarray, end: np.ndarray, size: np.ndarray, option_count: int
) -> dict[str, np.ndarray]:
    """Returns the arrays of a `Network` for these intervals, by field name. Intervals of one owner
    with the same span are added up.

    - `owner`: the option of each interval.
    - `begin`, `end`, `size`: the half-open span and the bytes of each interval.
    """
    names = "use_start", "use_begin", "use_end", "use_bytes"
    width = int(end.max(initial=0)) + 1
    arrays = _summed_uses(owner, begin, end, size, option_count, width)
    return dict(zip(names, arrays, strict=True))


@kernel
def _summed_uses(owner, begin, end, size, option_count, width):
    """Returns the starts by owner, and begin, end and bytes of the intervals. The intervals of an
    owner are sorted by their spans."""
    first, place = _by_piece(owner, option_count)
    begin, end, size = _taken(begin, place), _taken(end, place), _taken(size, place)
    start, count = np.zeros(option_count + 1, dtype=np.int64), 0
    for o in range(option_count):
        if not _is_sorted(begin, end, first[o], first[o + 1]):
            span = slice(first[o], first[o + 1])
            spans = np.empty(first[o + 1] - first[o], dtype=np.int64)
            for k in range(len(spans)):
                spans[k] = begin[first[o] + k] * width + end[first[o] + k]
            order = stable_order(spans)
            begins, ends = _taken(begin[span], order), _taken(end[span], order)
            sizes = _taken(size[span], order)
            for k in range(len(order)):
                begin[first[o] + k], end[first[o] + k] = begins[k], ends[k]
                size[first[o] + k] = sizes[k]
        for k in range(first[o], first[o + 1]):
            same = count > start[o] and begin[count - 1] == begin[k] and end[count - 1] == end[k]
            if same:
                size[count - 1] += size[k]
            else:
                begin[count], end[count], size[count] = begin[k], end[k], size[k]
                count += 1
        start[o + 1] = count
    return start, begin[:count].copy(), end[:count].copy(), size[:count].copy()


@inner
def _taken(values, place):
    """Returns `values[place]`."""
    taken = np.empty(len(place), dtype=np.int64)
    for k in range(len(place)):
        taken[k] = values[place[k]]
    return taken


@inlined
def _is_sorted(begin, end, first, last):
    for k in range(first + 1, last):
        if begin[k] < begin[k - 1] or (begin[k] == begin[k - 1] and end[k] < end[k - 1]):
            return False
    return True


@inner
def _by_piece(piece, count):
    """Sorts entries by piece. `piece`: the piece of each entry. Returns the start of each of
    `count` pieces, and the entries in the order of their pieces."""
    start = np.zeros(count + 1, dtype=np.int64)
    for k in piece:
        start[k + 1] += 1
    for k in range(count):
        start[k + 1] += start[k]
    following, place = start[:-1].copy(), np.empty(len(piece), dtype=np.int64)
    for entry in range(len(piece)):
        place[following[piece[entry]]] = entry
        following[piece[entry]] += 1
    return start, place


@kernel
def _events(net, time, time_count):
    """Returns the changes of memory use, sorted by time: the starts of the times, and option, node
    and bytes of each change."""
    uses = len(net.use_begin)
    start, place = _by_piece(time, time_count + 1)
    owner, node = np.empty(uses, dtype=np.int64), np.empty(uses, dtype=np.int64)
    for i in range(len(net.option_start) - 1):
        for o in range(net.option_start[i], net.option_start[i + 1]):
            owner[net.use_start[o] : net.use_start[o + 1]] = o
            node[net.use_start[o] : net.use_start[o + 1]] = i
    count = len(place)
    event_option, event_node = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    change = np.empty(count, dtype=np.int64)
    for k in range(len(place)):
        use = place[k] % uses
        event_option[k], event_node[k] = owner[use], node[use]
        change[k] = net.use_bytes[use] if place[k] < uses else -net.use_bytes[use]
    return start, event_option, event_node, change


@kernel
def _kept_times(time_count, limit, option_start, event_start, event_option, event_node, change):
    node_count = len(option_start) - 1
    held = np.zeros(option_start[node_count], dtype=np.int64)  # Bytes at the present time.
    pivot = np.zeros(option_start[node_count], dtype=np.int64)  # Bytes at the last kept time.
    most = np.zeros(node_count, dtype=np.int64)
    above = np.zeros(node_count, dtype=np.int64)  # The maximum over options of held - pivot.
    below = np.zeros(node_count, dtype=np.int64)  # The minimum of it.
    touched = np.empty(node_count, dtype=np.int64)
    is_touched = np.zeros(node_count, dtype=np.bool_)
    seen_at = np.full(node_count, -1, dtype=np.int64)
    count, last = 0, -1
    kept = np.zeros(time_count, dtype=np.bool_)
    total_most, total_above, total_below = 0, 0, 0
    for t in range(time_count):
        for k in range(event_start[t], event_start[t + 1]):
            held[event_option[k]] += change[k]
        for k in range(event_start[t], event_start[t + 1]):
            i = event_node[k]
            if seen_at[i] == t:
                continue
            seen_at[i] = t
            if not is_touched[i]:
                is_touched[i] = True
                touched[count] = i
                count += 1
            first, end = option_start[i], option_start[i + 1]
            total_most -= most[i]
            total_above -= above[i]
            total_below -= below[i]
            most[i] = held[first]
            above[i] = below[i] = held[first] - pivot[first]
            for o in range(first + 1, end):
                most[i] = max(most[i], held[o])
                above[i] = max(above[i], held[o] - pivot[o])
                below[i] = min(below[i], held[o] - pivot[o])
            total_most += most[i]
            total_above += above[i]
            total_below += below[i]
        if total_most <= limit or (last >= 0 and total_above <= 0):
            continue
        if last >= 0 and total_below >= 0:
            kept[last] = False
        kept[t], last = True, t
        for k in range(count):  # The pivot moves to t.
            i = touched[k]
            is_touched[i] = False
            for o in range(option_start[i], option_start[i + 1]):
                pivot[o] = held[o]
            above[i], below[i] = 0, 0
        count, total_above, total_below = 0, 0, 0
    return kept
