"""Orders of steps under which XLA's heap wastes less: a search by annealing.

XLA's heap needs more memory than is alive (`kiwi.memory.heap`), by an amount that depends on the
order of the steps. The search moves runs of steps to random places between the steps they read and
the steps that read them. A run stays at its new place if the needed memory falls, or hardly grows.
The needed memory is the heap with XLA's placement of the buffers. If XLA may run neighbours in
either order (`kiwi.emit.barriers`), it is the memory alive then, if that is more.

Units: bytes, and positions of steps, both ends included.
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

MOST_TRIES = 20_000
WORK = 8e9
"""Tries times the square of the number of buffers."""
LEAST_TRIES = 20
"""Large programs waste less, and get fewer tries, but never fewer than this."""
PATIENCE = 0.25
"""The part of the tries after which a search ends in which no order has needed less. Most searches
find a better order within the first twentieth, or none at all."""
HEAT = 0.001
"""The part of the aim by which the needed memory may grow at first. It falls to 0. A larger or
smaller part left programs above the budget."""

NEAR = 8
"""Every other step to move is at most this many steps from the point of the peak."""


@dataclass(frozen=True)
class MovingBuffer:
    """A buffer that is held from step `first` until the last of `readers` has run.

    - `first`: -1 for a buffer that is held from the start. `is_behind`: it begins just after that
      step.
    - `readers`: steps; the number of steps stands for the end.
    - `overwritten_by`: the reader that writes its result here, if it comes last; -1 if none.
    - `is_temporary`: it is held while step `first` runs, and is not its result.
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

    - `runs`: the numbers of steps that move together. They add up to the number of steps.
    - `precedes`: pairs of steps in different runs, the first of which has to run first.
    - `swaps`: whether XLA may run a step before its neighbour.
    - `constant_bytes`: held throughout, outside of the heap.
    - `events`: how many buffers each step allocates and frees beside `buffers`, if known. XLA
      compares lives by such events.
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
    """The bytes that an order of runs needs, by default the given order."""
    wait_for(ORDER_LOOPS)
    given = np.arange(len(steps.runs)) if order is None else np.array(order)
    buffers = _buffers_of(steps)
    needed, _, _, _ = _needed(_places(given, offsets(steps.runs)), buffers, NO_BOUND, NO_BOUND)
    return int(needed) + steps.constant_bytes


def better_order(
    steps: Steps, limit_bytes: int, aim_bytes: float, seed: int = 0, *, anew: bool = False
) -> tuple[int, ...]:
    """The best order of runs found, which needs no more than the given one. The search is
    deterministic.

    - `limit_bytes`: the limit for live bytes, constant bytes included.
    - `aim_bytes`: the search ends when an order needs no more than this.
    - `anew`: the given order cannot be used, nor orders close to it. The result is the best of all
      orders tried after a quarter of the moves, even if it needs more.
    """
    wait_for(ORDER_LOOPS)
    count = max(1, len(steps.buffers))
    tries = int(max(LEAST_TRIES, min(MOST_TRIES, WORK / count**2)))
    own = [int(each) - steps.constant_bytes for each in (limit_bytes, aim_bytes)]
    heat = HEAT * aim_bytes
    edges = _edges(steps)
    runs = len(steps.runs)
    ties = _Ties(*_rows(edges, runs), *_rows(((b, a) for a, b in edges), runs))
    ends, buffers = offsets(steps.runs), _buffers_of(steps)
    found = _search(ends, ties, buffers, own[0], own[1], tries, heat, seed, anew)
    return tuple(int(run) for run in found)


def least_alive_bytes(steps: Steps) -> int:
    """A lower bound of the bytes that any order needs.

    A buffer is alive at a step in every order if the step that yields it is that step or has to run
    before it, and one of its readers is that step or has to run after it.
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
    """Whether a buffer is alive at each step in every order."""
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
    """precedes[a, b]: whether step a runs before step b in every order, also through others."""
    precedes = np.zeros((steps.count, steps.count), dtype=np.bool_)
    for first, second in steps.precedes:
        precedes[first, second] = True
    ends = offsets(steps.runs)
    for start, end in pairwise(ends.tolist()):
        for step in range(start, end - 1):
            precedes[step, step + 1] = True
    for step in reversed(range(steps.count)):  # The given order is one of those that are allowed.
        for behind in np.flatnonzero(precedes[step, step + 1 :]) + step + 1:
            precedes[step] |= precedes[behind]
    return precedes


def warm_up() -> None:
    """Runs the loops of this module and the heap's once, which compiles or loads them."""
    buffers = (MovingBuffer(100, 0, (2,)), MovingBuffer(100, 1, (3,)))
    steps = Steps((1, 1, 1, 1), frozenset({(0, 2), (1, 3)}), buffers)
    needed_bytes(steps, better_order(steps, 200, 100))


def _edges(steps: Steps) -> list[tuple[int, int]]:
    """`precedes` by runs."""
    run_of = list(chain.from_iterable([k] * n for k, n in enumerate(steps.runs)))
    pairs = {(run_of[a], run_of[b]) for a, b in steps.precedes}
    return sorted((a, b) for a, b in pairs if a != b)


def _rows(pairs: Iterable[tuple[int, int]], count: int) -> tuple[np.ndarray, np.ndarray]:
    """For each of `count` numbers its partners, as starts of rows and entries."""
    rows: list[list[int]] = [[] for _ in range(count)]
    for row, entry in pairs:
        rows[row].append(entry)
    entries = list(chain.from_iterable(rows))
    return offsets([len(row) for row in rows]), np.array(entries, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _Buffers(Arrays):
    """The `MovingBuffer`s `b` of `Steps`, for numba.

    - `size`, `first`, `overwritten_by`, `is_behind`, `is_temporary` (B): as there.
    - `rank`, `into` (B), `events`: as in `kiwi.memory.heap.Lives`; `events` by step.
    - `reader_start` (B+1), `reader`: the readers of b are reader[reader_start[b]:...].
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
    """For each run the runs that stay behind it, and those that stay before it, as `_rows`."""

    after_start: np.ndarray
    after: np.ndarray
    before_start: np.ndarray
    before: np.ndarray


def _buffers_of(steps: Steps) -> _Buffers:
    buffers = [b for b in steps.buffers if b.bytes or steps.swaps]
    size = np.array([b.bytes for b in buffers], dtype=np.int64)
    readers = [(k, reader) for k, b in enumerate(buffers) for reader in b.readers]
    return _Buffers(
        size,
        np.array([b.first for b in buffers], dtype=np.int64),
        np.array([b.overwritten_by for b in buffers], dtype=np.int64),
        np.array([b.is_behind for b in buffers], dtype=np.bool_),
        np.array([b.is_temporary for b in buffers], dtype=np.bool_),
        ranks(size),
        _written_over(buffers),
        np.array(steps.events or [0] * steps.count, dtype=np.int64),
        *_rows(readers, len(buffers)),
        steps.swaps,
    )


def _written_over(buffers: Sequence[MovingBuffer]) -> np.ndarray:
    """For each buffer the one that is written over it and takes its place; -1 if there is none."""
    result = {b.first: k for k, b in enumerate(buffers) if b.readers and b.first >= 0}
    overwritten = []
    for buffer in buffers:
        other = result.get(buffer.overwritten_by, -1)
        is_equal = other >= 0 and buffers[other].bytes == buffer.bytes
        overwritten.append(other if is_equal else -1)
    return np.array(overwritten, dtype=np.int64)


@kernel(nogil=True)
def _places(order, ends):
    """The position of each step, and behind them the end's, which is the last one."""
    place = np.empty(ends[-1] + 1, np.int64)
    at = 0
    for run in order:
        for step in range(ends[run], ends[run + 1]):
            place[step] = at
            at += 1
    place[ends[-1]] = at - 1
    return place


@kernel(nogil=True)
def _search(ends, ties, buffers, limit, aim, tries, heat, seed, anew):
    """Annealing."""
    np.random.seed(seed)
    count = len(ends) - 1
    order, at = np.arange(count), np.arange(count)
    now, above, _, worst = _needed(_places(order, ends), buffers, NO_BOUND, aim)
    best, least, least_above = order.copy(), now, above
    given, given_above = now, above
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
        low, high = _room(run, at, ties)
        if low > high:  # a value that the given order does not keep leaves no room
            continue
        source, target = at[run], np.random.randint(low, high + 1)
        if source == target:
            continue
        _move(order, at, source, target)
        bound = now - heat * (1 - tried / tries) * np.log(1 - np.random.random())
        found, above, alive, where = _needed(_places(order, ends), buffers, np.int64(bound), aim)
        if alive > limit or found > bound:
            _move(order, at, target, source)
            continue
        now, worst = found, where
        if anew and tried < tries // 4:
            continue
        if found < least or (found == least and above < least_above):
            least, least_above = found, above
            for k in range(count):
                best[k] = order[k]
    return best


@inner(nogil=True)
def _run_near(order, ends, position):
    """A run at most `NEAR` steps from a position."""
    position += np.random.randint(-NEAR, NEAR + 1)
    for run in order:
        position -= ends[run + 1] - ends[run]
        if position < 0:
            return run
    return order[-1]


@inner(nogil=True)
def _room(run, at, ties):
    """The first and the last place that a run can be moved to."""
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
    """The bytes needed; by how much swapped neighbours are above the aim; the most that is alive;
    and the positions between which most is needed. Above `bound` the first figure is any number
    above it."""
    count, steps = len(buffers.size), len(place) - 1
    begin, last, former = _lives(place, buffers)
    held = _alive(begin, last, buffers.size, steps)
    where = np.full(2, np.argmax(held))
    alive = held[where[0]]
    needed, above = alive, 0
    if count and buffers.swaps:
        swapped = _swapped(place, begin, last, former, held, buffers)
        for position, each in enumerate(swapped):
            above += max(0, each - aim)
            if each > needed:
                needed = each
                where[:] = position
    if needed > bound:
        return needed, above, alive, where
    events = np.zeros(steps, np.int64)
    for step in range(steps):
        events[place[step]] = buffers.events[step]
    lives = Lives(begin, last, buffers.size, buffers.rank, buffers.into, events)
    heap, low, high = placed_bytes(lives, bound)
    if heap > needed:
        needed, where[0], where[1] = heap, low, high
    return needed, above, alive, where


@inner(nogil=True)
def _lives(place, buffers):
    """When each buffer begins and ends, and its last reader but one."""
    first, row, readers = buffers.first, buffers.reader_start, buffers.reader
    count = len(first)
    begin, last = np.empty(count, np.int64), np.empty(count, np.int64)
    former = np.full(count, -1, np.int64)
    for b in range(count):
        begin[b] = place[first[b]] + buffers.is_behind[b] if first[b] >= 0 else 0
        last[b] = begin[b]
        for k in range(row[b], row[b + 1]):
            at = place[readers[k]]
            if at > last[b]:
                former[b], last[b] = last[b], at
            elif former[b] < at < last[b]:
                former[b] = at
        writer = buffers.overwritten_by[b]
        if writer >= 0 and last[b] == place[writer] > begin[b]:
            last[b] -= 1
    return begin, last, former


@inner(nogil=True)
def _alive(begin, last, size, steps):
    """The bytes held at each position."""
    change = np.zeros(steps + 1, np.int64)
    for b in range(len(size)):
        change[begin[b]] += size[b]
        change[last[b] + 1] -= size[b]
    for t in range(1, steps):
        change[t] += change[t - 1]
    return change[:steps]


@inner(nogil=True)
def _swapped(place, begin, last, former, held, buffers):
    """The bytes alive if a step runs before its neighbour, for each step that does not read the
    neighbour's result. `former`: whether it reads the neighbour's operand, too."""
    size, first = buffers.size, buffers.first
    row, readers = buffers.reader_start, buffers.reader
    steps = len(held)
    own, temporary = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    freed, reads_neighbour = np.zeros(steps, np.int64), np.zeros(steps, np.bool_)
    for b in range(len(size)):
        if buffers.is_temporary[b]:
            temporary[begin[b]] += size[b]
            continue
        if first[b] >= 0:
            own[begin[b]] += size[b]
        if last[b] > begin[b] and former[b] != last[b] - 1 and begin[b] != last[b] - 1:
            freed[last[b]] += size[b]
        for k in range(row[b], row[b + 1]):
            if readers[k] < steps and place[readers[k]] == begin[b] + 1:
                reads_neighbour[begin[b] + 1] = True
    found = np.zeros(max(0, steps - 1), np.int64)
    for k in range(steps - 1):
        if not reads_neighbour[k + 1]:
            others = own[k] + temporary[k]
            later = max(temporary[k + 1], others - freed[k + 1])
            found[k] = held[k] - others + own[k + 1] + later
    return found
