"""Points of time that can never bind, dropped.

(a) At t the largest options of all nodes together stay within the limit.
(b) Time t is covered by time s: no assignment holds more at t than at s, that is,
    sum over nodes of max over options of (bytes[o, t] - bytes[o, s]) <= 0.
    Each time is compared with the last one kept before it, in both directions.
"""

import numba
import numpy as np

from kiwi.solver.edge_tables import offsets, owners
from kiwi.solver.network import NO_LIMIT_BYTES, Network


def drop_times(net: Network) -> Network:
    """`net` with fewer times; the same assignments are feasible, at the same cost."""
    if net.limit_bytes >= NO_LIMIT_BYTES or not len(net.times):
        return net
    events = _events(net)
    kept = _kept_times(len(net.times), net.limit_bytes, net.option_start, *events)
    kept = np.flatnonzero(kept)
    begin, end = np.searchsorted(kept, net.use_begin), np.searchsorted(kept, net.use_end)
    seen = begin < end
    spans = (owners(net.use_start)[seen], begin[seen], end[seen], net.use_bytes[seen])
    return net._replace(times=net.times[kept], **summed_uses(*spans, net.option_count))


def summed_uses(
    owner: np.ndarray, begin: np.ndarray, end: np.ndarray, size: np.ndarray, option_count: int
) -> dict[str, np.ndarray]:
    """The arrays of a `Network` for these intervals, those of one owner and span added up."""
    order = np.lexsort((end, begin, owner))
    owner, begin, end, size = (column[order] for column in (owner, begin, end, size))
    new = np.ones(len(owner), dtype=bool)
    new[1:] = (np.diff(owner) != 0) | (np.diff(begin) != 0) | (np.diff(end) != 0)
    firsts = np.flatnonzero(new)
    return {
        "use_start": offsets(np.bincount(owner[firsts], minlength=option_count)),
        "use_begin": begin[firsts],
        "use_end": end[firsts],
        "use_bytes": np.add.reduceat(size, firsts) if len(firsts) else size,
    }


def _events(net: Network) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Changes of memory use by time: CSR starts over times, then option, node and bytes."""
    owner = owners(net.use_start)
    node = owners(net.option_start)[owner]
    time = np.concatenate([net.use_begin, net.use_end])
    order = np.argsort(time, kind="stable")
    counts = np.bincount(time, minlength=len(net.times) + 1)
    change = np.concatenate([net.use_bytes, -net.use_bytes])
    return offsets(counts), np.tile(owner, 2)[order], np.tile(node, 2)[order], change[order]


@numba.njit(cache=True)
def _kept_times(time_count, limit, option_start, event_start, event_option, event_node, change):
    node_count = len(option_start) - 1
    held = np.zeros(option_start[node_count], dtype=np.int64)  # now
    pivot = np.zeros(option_start[node_count], dtype=np.int64)  # at the last kept time
    most = np.zeros(node_count, dtype=np.int64)
    above = np.zeros(node_count, dtype=np.int64)  # max over options of held - pivot
    below = np.zeros(node_count, dtype=np.int64)  # min
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
            most[i] = held[first:end].max()
            above[i] = (held[first:end] - pivot[first:end]).max()
            below[i] = (held[first:end] - pivot[first:end]).min()
            total_most += most[i]
            total_above += above[i]
            total_below += below[i]
        if total_most <= limit or (last >= 0 and total_above <= 0):
            continue
        if last >= 0 and total_below >= 0:
            kept[last] = False
        kept[t], last = True, t
        for k in range(count):  # the pivot moves to t
            i = touched[k]
            is_touched[i] = False
            pivot[option_start[i] : option_start[i + 1]] = held[
                option_start[i] : option_start[i + 1]
            ]
            above[i], below[i] = 0, 0
        count, total_above, total_below = 0, 0, 0
    return kept
