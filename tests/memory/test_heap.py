"""The heap that buffers of known lives need, by XLA's rule."""

from hypothesis import given
from hypothesis import strategies as st

from kiwi.memory.heap import packed_bytes
from kiwi.solver.problem import Interval

BUFFERS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 10), st.integers(1, 50)), max_size=25
).map(lambda found: [Interval(a, a + n, size) for a, n, size in found])


def alive(buffers, time):
    return sum(b.bytes for b in buffers if b.start <= time < b.end)


def test_nothing_needs_nothing():
    assert packed_bytes([]) == 0


def test_lives_that_do_not_meet_share_a_place():
    assert packed_bytes([Interval(0, 2, 8), Interval(2, 4, 8), Interval(4, 6, 3)]) == 8


def test_a_hole_too_small_is_wasted():
    """[0, 4) and [4, 8) are taken at first; 4 bytes at the bottom become free, 6 do not fit."""
    buffers = [Interval(0, 10, 7), Interval(0, 3, 6), Interval(0, 5, 5), Interval(3, 10, 6)]
    assert packed_bytes(buffers) == 18 == max(alive(buffers, t) for t in range(10))
    fragmented = [
        Interval(0, 4, 4),
        Interval(0, 8, 4),
        Interval(4, 12, 4),
        Interval(8, 12, 4),
        Interval(8, 16, 3),
        Interval(6, 14, 2),
    ]
    assert packed_bytes(fragmented) >= max(alive(fragmented, t) for t in range(16))


@given(BUFFERS)
def test_between_the_peak_and_the_sum(buffers):
    peak = max((alive(buffers, t) for t in range(40)), default=0)
    assert peak <= packed_bytes(buffers) <= sum(b.bytes for b in buffers)


@given(BUFFERS)
def test_the_order_in_which_buffers_are_listed_does_not_matter(buffers):
    assert packed_bytes(buffers) == packed_bytes(sorted(buffers, key=repr))
