"""Searches by annealing for an order of steps under which XLA's heap wastes less memory.

XLA's heap needs more memory than is alive (`kiwi.memory.heap`). The difference depends on the order
of the steps. The search moves runs of steps to random places between the steps that they read and
the steps that read them. A run stays at its new place if the needed memory falls, or hardly grows.
The needed memory is the size of the heap with XLA's placement of the buffers. If XLA may run
neighbours in either order (`kiwi.emit.barriers`), it is at least the memory alive when they are
swapped.

Memory is in bytes. Intervals are of positions of steps, both ends included.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from kiwi.memory.heap import NO_BOUND, Lives, placed_bytes, ranks
from kiwi.solver.compiled import inner, kernel, wait_for
from kiwi.solver.edge_tables import offsets
from kiwi.solver.loops.arrays import Arrays

ORDER_LOOPS = f"{__name__}:warm_up"
"""The function that compiles the loops of this module, as `kiwi.solver.compiled` names it."""

MOST_TRIES = 20_000
"""The largest number of tries of a search."""
WORK = 8e9
"""The largest number of tries times the square of the number of buffers. Programs with more buffers
get fewer tries."""
LEAST_TRIES = 20
"""The smallest number of tries of a search, however many buffers there are."""
PATIENCE = 0.25
"""The share of the tries after which the search ends if no order has needed less memory."""
HEAT = 0.001
"""The temperature of the annealing at the start, as a share of the aim. It falls to 0."""

NEAR = 8
"""The largest distance in steps from the point of the peak at which every other move begins. The
remaining moves begin anywhere."""


@dataclass(frozen=True)
class MovingBuffer:
    """A buffer that is held from step `first` until the last of `readers` has run.

    - `first`: a step; -1 for a buffer that is held from the start.
    - `readers`: steps. The number of steps stands for the end.
    - `overwritten_by`: the reader that writes its result over this buffer if it comes last; -1 for
      none.
    - `is_behind`: whether the buffer begins just after step `first`.
    - `is_temporary`: whether the buffer is workspace of step `first` instead of its result.
    """

    bytes: int
    first: int
    readers: tuple[int, ...] = ()
    overwritten_by: int = -1
    is_behind: bool = False
    is_temporary: bool = False


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps 0, 1, ... of a program with the buffers that they hold.

    - `runs`: the length of each run: neighbouring steps that move together. The lengths add up to
      the number of steps.
    - `precedes`: pairs of steps in different runs. The first must run before the second.
    - `swaps`: whether XLA may swap neighbouring steps.
    - `constant_bytes`: the bytes held throughout the step, outside of the heap.
    - `events`: the number of buffers that each step allocates or frees, without `buffers`; empty if
      unknown. XLA measures lives in such events.
    """

    runs: tuple[int, ...]
    precedes: frozenset[tuple[int, int]]
    buffers: tuple[MovingBuffer, ...]
    swaps: bool = False
    constant_bytes: int = 0
    events: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """The number of steps."""
        return sum(self.runs)


def needed_bytes(steps: Steps, order: Sequence[int] | None = None) -> int:
    """Returns the bytes that an order of runs needs, constant bytes included. `order`: by default
    the order of `steps`."""
    wait_for(ORDER_LOOPS)
    given = np.arange(len(steps.runs)) if order is None else np.array(order)
    buffers = _buffers_of(steps)
    needed, _, _, _ = _needed(_places(given, offsets(steps.runs)), buffers, NO_BOUND, NO_BOUND)
    return int(needed) + steps.constant_bytes


def better_order(
    steps: Steps, limit_bytes: int, aim_bytes: float, seed: int = 0, *, anew: bool = False
) -> tuple[int, ...]:
    """Returns the best order of runs found, which needs no more bytes than the order of `steps`.
    Equal arguments give equal orders.

    - `limit_bytes`: the limit of the live bytes, constant bytes included. Orders above it are
      rejected.
    - `aim_bytes`: the needed bytes at which the search ends.
    - `anew`: whether the order of `steps` and orders close to it cannot be used. The result is then
      the best order after a quarter of the tries, even if it needs more than the order of `steps`.
    """
    wait_for(ORDER_LOOPS)
    count = max(1, len(steps.buffers))
    tries = int(max(LEAST_TRIES, min(MOST_TRIES, WORK / count**2)))
    limits = [int(total_bytes) - steps.constant_bytes for total_bytes in (limit_bytes, aim_bytes)]
    heat = HEAT * aim_bytes
    edges = _edges(steps)
    runs = len(steps.runs)
    ties = _Ties(*_rows(edges, runs), *_rows(((b, a) for a, b in edges), runs))
    ends, buffers = offsets(steps.runs), _buffers_of(steps)
    best = _search(ends, ties, buffers, limits[0], limits[1], tries, heat, seed, anew)
    return tuple(int(run) for run in best)


def least_alive_bytes(steps: Steps) -> int:
    """Returns a lower bound of the bytes that any order needs.

    A buffer is alive at step s in every order if it begins at s or at a step that must run before
    s, and one of its readers is s or must run after s.
    """
    precedes = _all_precedes(steps)
    begins_before = precedes | np.eye(steps.count, dtype=np.bool_)
    alive = np.zeros(steps.count, dtype=np.int64)
    for buffer in steps.buffers:
        alive[_always_alive(buffer, precedes, begins_before)] += buffer.bytes
    return int(alive.max(initial=0)) + steps.constant_bytes


def _always_alive(
    buffer: MovingBuffer, precedes: np.ndarray, begins_before: np.ndarray
) -> np.ndarray:
    """Returns, for each step, whether the buffer is alive at it in every order, shape (steps,)."""
    count = len(precedes)
    is_read_later = np.zeros(count, dtype=np.bool_)
    for reader in buffer.readers:
        if reader == count:
            is_read_later[:] = True
        else:
            is_overwritten = reader == buffer.overwritten_by
            is_read_later |= (precedes if is_overwritten else begins_before)[:, reader]
    if buffer.first < 0:
        return is_read_later
    has_begun = (precedes if buffer.is_behind else begins_before)[buffer.first]
    alive = has_begun & is_read_later
    alive[buffer.first] |= not buffer.is_behind
    return alive


def _all_precedes(steps: Steps) -> np.ndarray:
    """Returns the transitive closure of `Steps.precedes` and the runs: precedes[a, b] says whether
    step a runs before step b in every order."""
    precedes = np.zeros((steps.count, steps.count), dtype=np.bool_)
    for first, second in steps.precedes:
        precedes[first, second] = True
    ends = offsets(steps.runs)
    for start, end in pairwise(ends.tolist()):
        for step in range(start, end - 1):
            precedes[step, step + 1] = True
    for step in reversed(range(steps.count)):  # The order of `steps` is topological.
        for behind in np.flatnonzero(precedes[step, step + 1 :]) + step + 1:
            precedes[step] |= precedes[behind]
    return precedes


def warm_up() -> None:
    """Runs the loops of this module and of `heap` once, so that numba compiles or loads them."""
    buffers = (MovingBuffer(100, 0, (2,)), MovingBuffer(100, 1, (3,)))
    steps = Steps((1, 1, 1, 1), frozenset({(0, 2), (1, 3)}), buffers)
    needed_bytes(steps, better_order(steps, 200, 100))


def _edges(steps: Steps) -> list[tuple[int, int]]:
    """Returns the pairs (a, b) of runs such that a must precede b, sorted."""
    run_of = list(chain.from_iterable([k] * n for k, n in enumerate(steps.runs)))
    pairs = {(run_of[a], run_of[b]) for a, b in steps.precedes}
    return sorted((a, b) for a, b in pairs if a != b)


def _rows(pairs: Iterable[tuple[int, int]], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the partners of each of `count` numbers as a sparse matrix by rows: the starts of the
    rows, and the entries."""
    rows: list[list[int]] = [[] for _ in range(count)]
    for row, entry in pairs:
        rows[row].append(entry)
    entries = list(chain.from_iterable(rows))
    return offsets([len(row) for row in rows]), np.array(entries, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _Buffers(Arrays):
    """The B buffers of `Steps`, for numba.

    - `size`, `first`, `overwritten_by`, `is_behind`, `is_temporary` (B): as in `MovingBuffer`.
    - `rank`, `into` (B): as in `kiwi.memory.heap.Lives`.
    - `events` (steps), `swaps`: as in `Steps`.
    - `reader_start` (B+1), `reader`: the readers of buffer b are reader[reader_start[b]] ..
      reader[reader_start[b+1]].
    """

    size: np.ndarray
    first: np.ndarray
    overwritten_by: np.ndarray
    is_behind: np.ndarray
    is_temporary: np.ndarray
    rank: np.ndarray
    into: np.ndarray
    events: np.ndarray
    reader_start: np.ndarray
    reader: np.ndarray
    swaps: bool


@dataclass(frozen=True, eq=False)
class _Ties(Arrays):
    """The runs that must follow each run, and the runs that must precede it, as `_rows` returns
    them."""

    after_start: np.ndarray
    after: np.ndarray
    before_start: np.ndarray
    before: np.ndarray


def _buffers_of(steps: Steps) -> _Buffers:
    buffers = [buffer for buffer in steps.buffers if buffer.bytes or steps.swaps]
    size = np.array([buffer.bytes for buffer in buffers], dtype=np.int64)
    readers = [(k, reader) for k, buffer in enumerate(buffers) for reader in buffer.readers]
    return _Buffers(
        size,
        np.array([buffer.first for buffer in buffers], dtype=np.int64),
        np.array([buffer.overwritten_by for buffer in buffers], dtype=np.int64),
        np.array([buffer.is_behind for buffer in buffers], dtype=np.bool_),
        np.array([buffer.is_temporary for buffer in buffers], dtype=np.bool_),
        ranks(size),
        _written_over(buffers),
        np.array(steps.events or [0] * steps.count, dtype=np.int64),
        *_rows(readers, len(buffers)),
        steps.swaps,
    )


def _written_over(buffers: Sequence[MovingBuffer]) -> np.ndarray:
    """Returns, for each buffer, the index of the buffer that is written over it and takes its
    place; -1 for none."""
    result = {
        result_buffer.first: k
        for k, result_buffer in enumerate(buffers)
        if result_buffer.readers and result_buffer.first >= 0
    }
    overwritten = []
    for buffer in buffers:
        writer = result.get(buffer.overwritten_by, -1)
        is_equal = writer >= 0 and buffers[writer].bytes == buffer.bytes
        overwritten.append(writer if is_equal else -1)
    return np.array(overwritten, dtype=np.int64)


@kernel(nogil=True)
def _places(order, ends):
    """Returns the position of each step in an order of runs. The last entry, for the end, is the
    last position. `ends`: the first step of each run, and the number of steps."""
    place = np.empty(ends[-1] + 1, np.int64)
    position = 0
    for run in order:
        for step in range(ends[run], ends[run + 1]):
            place[step] = position
            position += 1
    place[ends[-1]] = position - 1
    return place


@kernel(nogil=True)
def _search(ends, ties, buffers, limit, aim, tries, heat, seed, anew):
    """Returns the best order of runs that annealing finds. Parameters as in `better_order`, without
    constant bytes."""
    np.random.seed(seed)
    count = len(ends) - 1
    order, place = np.arange(count), np.arange(count)
    current, above, _, worst = _needed(_places(order, ends), buffers, NO_BOUND, aim)
    best, least, least_above = order.copy(), current, above
    given, given_above = current, above
    if anew:
        least = NO_BOUND
    for tried in range(tries):
        if least <= aim:
            break
        if tried > PATIENCE * tries and least == given and least_above == given_above:
            break
        run = order[np.random.randint(count)]
        if tried % 2:
            run = _run_near(order, ends, worst[np.random.randint(2)])
        low, high = _room(run, place, ties)
        if low > high:  # There is no room if the order of `steps` breaks a precedence.
            continue
        source, target = place[run], np.random.randint(low, high + 1)
        if source == target:
            continue
        _move(order, place, source, target)
        bound = current - heat * (1 - tried / tries) * np.log(1 - np.random.random())
        needed, above, alive, peak = _needed(_places(order, ends), buffers, np.int64(bound), aim)
        if alive > limit or needed > bound:
            _move(order, place, target, source)
            continue
        current, worst = needed, peak
        if anew and tried < tries // 4:
            continue
        if needed < least or (needed == least and above < least_above):
            least, least_above = needed, above
            for k in range(count):
                best[k] = order[k]
    return best


@inner(nogil=True)
def _run_near(order, ends, position):
    """Returns a random run at most `NEAR` steps from a position."""
    position += np.random.randint(-NEAR, NEAR + 1)
    for run in order:
        position -= ends[run + 1] - ends[run]
        if position < 0:
            return run
    return order[-1]


@inner(nogil=True)
def _room(run, at, ties):
    """Returns the first and the last place to which a run can be moved. `at`: the place of each
    run."""
    low, high = 0, len(at) - 1
    for k in range(ties.before_start[run], ties.before_start[run + 1]):
        low = max(low, at[ties.before[k]] + 1)
    for k in range(ties.after_start[run], ties.after_start[run + 1]):
        high = min(high, at[ties.after[k]] - 1)
    return low, high


@inner(nogil=True)
def _move(order, at, source, target):
    run = order[source]
    step = 1 if target > source else -1
    for k in range(source, target, step):
        order[k] = order[k + step]
        at[order[k]] = k
    order[target] = run
    at[run] = target


@kernel(nogil=True)
def _needed(place, buffers, bound, aim):
    """Returns the bytes needed, the bytes by which swapped neighbours exceed the aim (summed over
    the positions), the peak of the live bytes, and the first and last position of the peak, shape
    (2,).

    If the bytes needed exceed `bound`, the first figure may be any number above `bound`.
    """
    count, steps = len(buffers.size), len(place) - 1
    begin, last, former = _lives(place, buffers)
    held = _alive(begin, last, buffers.size, steps)
    peak = np.full(2, np.argmax(held))
    alive = held[peak[0]]
    needed, above = alive, 0
    if count and buffers.swaps:
        swapped = _swapped(place, begin, last, former, held, buffers)
        for position, swapped_bytes in enumerate(swapped):
            above += max(0, swapped_bytes - aim)
            if swapped_bytes > needed:
                needed = swapped_bytes
                peak[:] = position
    if needed > bound:
        return needed, above, alive, peak
    events = np.zeros(steps, np.int64)
    for step in range(steps):
        events[place[step]] = buffers.events[step]
    lives = Lives(begin, last, buffers.size, buffers.rank, buffers.into, events)
    heap, low, high = placed_bytes(lives, bound)
    if heap > needed:
        needed, peak[0], peak[1] = heap, low, high
    return needed, above, alive, peak


@inner(nogil=True)
def _lives(place, buffers):
    """Returns, for each buffer, the first and the last position at which it is alive, and the
    position of its last reader but one (-1 for none)."""
    first, row, readers = buffers.first, buffers.reader_start, buffers.reader
    count = len(first)
    begin, last = np.empty(count, np.int64), np.empty(count, np.int64)
    former = np.full(count, -1, np.int64)
    for b in range(count):
        begin[b] = place[first[b]] + buffers.is_behind[b] if first[b] >= 0 else 0
        last[b] = begin[b]
        for k in range(row[b], row[b + 1]):
            position = place[readers[k]]
            if position > last[b]:
                former[b], last[b] = last[b], position
            elif former[b] < position < last[b]:
                former[b] = position
        writer = buffers.overwritten_by[b]
        if writer >= 0 and last[b] == place[writer] > begin[b]:
            last[b] -= 1
    return begin, last, former


@inner(nogil=True)
def _alive(begin, last, size, steps):
    """Returns the bytes held at each position."""
    change = np.zeros(steps + 1, np.int64)
    for b in range(len(size)):
        change[begin[b]] += size[b]
        change[last[b] + 1] -= size[b]
    for t in range(1, steps):
        change[t] += change[t - 1]
    return change[:steps]


@inner(nogil=True)
def _swapped(place, begin, last, former, held, buffers):
    """Returns, for each position k, the bytes alive if the step at k + 1 runs before the step at k;
    0 if it reads the result of the step at k.

    - `former`: the position of each buffer's last reader but one. A buffer that the step at k
      reads, too, is not freed by the step at k + 1.
    """
    size, first = buffers.size, buffers.first
    row, readers = buffers.reader_start, buffers.reader
    steps = len(held)
    result_bytes, temporary = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    freed, reads_neighbour = np.zeros(steps, np.int64), np.zeros(steps, np.bool_)
    for b in range(len(size)):
        if buffers.is_temporary[b]:
            temporary[begin[b]] += size[b]
            continue
        if first[b] >= 0:
            result_bytes[begin[b]] += size[b]
        if last[b] > begin[b] and former[b] != last[b] - 1 and begin[b] != last[b] - 1:
            freed[last[b]] += size[b]
        for k in range(row[b], row[b + 1]):
            if readers[k] < steps and place[readers[k]] == begin[b] + 1:
                reads_neighbour[begin[b] + 1] = True
    swapped = np.zeros(max(0, steps - 1), np.int64)
    for k in range(steps - 1):
        if not reads_neighbour[k + 1]:
            others = result_bytes[k] + temporary[k]
            later = max(temporary[k + 1], others - freed[k + 1])
            swapped[k] = held[k] - others + result_bytes[k + 1] + later
    return swapped
