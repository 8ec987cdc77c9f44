"""Buffers over time."""

from kiwi.interval import bytes_at
from kiwi.memory.timeline import Buffer, Timeline

ARGUMENT = Buffer(0, 3, 5, "argument", 7)
LINE = Timeline((ARGUMENT, Buffer(1, 2, 4), Buffer(2, 4, 3), Buffer(4, 4, 9)), 5)


def test_a_buffer_counts_from_its_start_until_before_its_end():
    assert LINE.curve_bytes == (5, 9, 8, 3, 0)
    assert (LINE.peak_bytes, LINE.peak_time) == (9, 1)


def test_the_buffers_that_are_alive_sum_to_the_curve():
    for time, size in enumerate(LINE.curve_bytes):
        assert bytes_at(LINE.buffers, time) == size
