"""The heap size of buffers with known lives, by XLA's rule."""

from hypothesis import given
from hypothesis import strategies as st

from kiwi.memory.heap import heap_bytes
from kiwi.memory.timeline import Buffer, Timeline

BUFFERS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 10), st.integers(1, 50)), max_size=25
).map(lambda found: [Buffer(a, a + n, size) for a, n, size in found])


def test_nothing_needs_nothing():
    assert heap_bytes([]) == 0


def test_lives_that_do_not_meet_share_a_place():
    assert heap_bytes([Buffer(0, 2, 8), Buffer(2, 4, 8), Buffer(4, 6, 3)]) == 8


def test_a_hole_too_small_is_wasted():
    """[0, 4) and [4, 8) are taken at first; 4 bytes at the bottom become free, 6 do not fit."""
    buffers = [Buffer(0, 10, 7), Buffer(0, 3, 6), Buffer(0, 5, 5), Buffer(3, 10, 6)]
    assert heap_bytes(buffers) == 18 == Timeline(tuple(buffers), 10).peak_bytes
    fragmented = [
        Buffer(0, 4, 4),
        Buffer(0, 8, 4),
        Buffer(4, 12, 4),
        Buffer(8, 12, 4),
        Buffer(8, 16, 3),
        Buffer(6, 14, 2),
    ]
    assert heap_bytes(fragmented) >= Timeline(tuple(fragmented), 16).peak_bytes


@given(BUFFERS)
def test_between_the_peak_and_the_sum(buffers):
    peak = Timeline(tuple(buffers), 40).peak_bytes
    assert peak <= heap_bytes(buffers) <= sum(b.bytes for b in buffers)


@given(BUFFERS)
def test_the_order_in_which_buffers_are_listed_does_not_matter(buffers):
    assert heap_bytes(buffers) == heap_bytes(sorted(buffers, key=repr))
