"""Orders of steps: what may move, and what stays."""

from kiwi.memory.order_search import MovingBuffer, Steps, better_order, needed_bytes

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
