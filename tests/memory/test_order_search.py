"""Orders of steps: which steps may move."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from kiwi.memory.order_search import (
    MovingBuffer,
    Steps,
    better_order,
    least_alive_bytes,
    needed_bytes,
)

ANY = 1 << 40


def test_a_buffer_is_moved_to_where_it_wastes_nothing():
    """Two large buffers that need not be alive at once: 0 and 1 yield them, 2 and 3 read them."""
    buffers = (MovingBuffer(100, 0, (2,)), MovingBuffer(100, 1, (3,)))
    steps = Steps((1, 1, 1, 1), frozenset({(0, 2), (1, 3)}), buffers)
    assert needed_bytes(steps) == 200
    assert needed_bytes(steps, better_order(steps, ANY, 100)) == 100


def test_runs_whose_ties_contradict_each_other_stay():
    buffers = (MovingBuffer(100, 0, (1,)), MovingBuffer(100, 1, (2,)))
    steps = Steps((1, 1, 1), frozenset({(0, 1), (1, 0), (1, 2), (2, 1), (2, 0)}), buffers)
    assert better_order(steps, ANY, 0) == (0, 1, 2)


def test_buffers_that_no_order_separates_are_counted_together():
    """Step 2 reads both results, and step 1's is read again at the end."""
    buffers = (MovingBuffer(100, 0, (2,)), MovingBuffer(10, 1, (2, 3)), MovingBuffer(1, 2, (3,)))
    steps = Steps((1, 1, 1), frozenset({(0, 2), (1, 2)}), buffers, constant_bytes=1000)
    assert least_alive_bytes(steps) == 1111


@st.composite
def small_programs(draw: st.DrawFn) -> Steps:
    """Draws five steps, each of which may read results of earlier steps."""
    count = 5
    buffers, precedes = [], set()
    for step in range(count):
        later = range(step + 1, count + 1)
        readers = draw(st.sets(st.sampled_from(later), max_size=3))
        writers = set() if count in readers else readers
        over = draw(st.sampled_from([-1, *sorted(writers)]))
        size = draw(st.integers(1, 8))
        buffers.append(MovingBuffer(size, step, tuple(sorted(readers)), over))
        precedes |= {(step, reader) for reader in readers if reader < count}
        buffers.append(MovingBuffer(draw(st.integers(1, 8)), step, is_temporary=True))
    held = MovingBuffer(draw(st.integers(1, 8)), -1, (draw(st.integers(0, count - 1)),))
    return Steps((1,) * count, frozenset(precedes), (*buffers, held))


@given(small_programs())
def test_no_order_needs_less_than_the_bound(steps: Steps):
    orders = [
        order
        for order in permutations(range(steps.count))
        if all(order.index(a) < order.index(b) for a, b in steps.precedes)
    ]
    assert least_alive_bytes(steps) <= min(needed_bytes(steps, order) for order in orders)
