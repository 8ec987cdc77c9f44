"""The memory that a compiled program holds beyond the prediction, unit by unit."""

import numpy as np

from kiwi.solver.problem import Interval
from kiwi.xla.read.buffer_assignment import (
    CompiledMemory,
    as_intervals,
    excess,
    held_curve,
    unit_curve,
)


def memory(curve, units):
    return CompiledMemory(tuple(curve), tuple(units), int(np.argmax(curve)), (), 0)


def test_each_unit_gets_the_most_held_while_it_runs():
    found = unit_curve(memory([1, 5, 2, 7, 3, 9], [0, 0, 1, 1, 2, 2]), 3)
    assert list(found) == [5, 7, 9]


def test_instructions_without_a_unit_belong_to_the_one_that_follows():
    assert list(unit_curve(memory([1, 8, 2], [0, -1, 1]), 2)) == [1, 8]


def test_an_instruction_that_runs_early_does_not_move_its_unit():
    """Position 0 belongs to the last unit; the median of its positions is late all the same."""
    found = unit_curve(memory([1, 2, 3, 4, 5], [2, 0, 1, 2, 2]), 3)
    assert list(found) == [2, 3, 5]


def test_a_unit_that_never_shows_takes_no_time():
    assert list(unit_curve(memory([4, 6], [0, 2]), 3)) == [4, 0, 6]


def test_a_report_shows_what_is_held_where_a_unit_was_fused_into_another():
    assert list(held_curve(memory([4, 6], [0, 2]), 3)) == [4, 4, 6]
    assert list(held_curve(memory([5, 9], [1, 2]), 4)) == [5, 5, 9, 9]
    assert list(held_curve(memory([1, 8, 2], [0, -1, 1]), 2)) == [1, 8]
    assert list(held_curve(memory([7], [-1]), 1)) == [0]


def test_a_report_shows_units_where_they_run_in_any_order():
    assert list(held_curve(memory([5, 9, 7], [2, 0, 1]), 3)) == [9, 7, 5]


def test_only_what_is_beyond_the_prediction_counts():
    assert list(excess(memory([4, 6], [0, 1]), [5, 2])) == [0, 4]


def test_what_is_far_below_the_budget_does_not_count():
    assert list(excess(memory([4, 9], [0, 1]), [1, 8], least_bytes=5)) == [0, 1]


def test_equal_neighbours_are_one_interval():
    assert as_intervals(np.array([0, 3, 3, 0, 2])) == (Interval(1, 3, 3), Interval(4, 5, 2))
    assert as_intervals(np.array([0, 0])) == ()
