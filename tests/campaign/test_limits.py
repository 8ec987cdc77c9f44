"""The controller of limits, with the rule of each kind of search."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiwi.campaign import shares
from kiwi.campaign.limits import (
    LimitController,
    Measured,
    OverlapLimits,
    ProblemLimits,
    ScheduleLimits,
)
from kiwi.plans.record import Round

BUDGET = 1_000_000
WASTE = 60_000


def a_round(limit_bytes, planned_bytes, needed_bytes):
    return Round(limit_bytes, 0, planned_bytes, needed_bytes, 0.0, 0.0, is_tied=False)


def test_a_limit_moves_by_the_excess_from_what_the_plan_holds():
    controller = LimitController(BUDGET)
    filled = Measured(BUDGET, BUDGET - 100, BUDGET + WASTE)
    assert filled.held_bytes == BUDGET - 100
    assert controller.by_excess(filled.held_bytes, filled) == BUDGET - 100 - WASTE
    assert controller.by_excess(filled.held_bytes, filled, 0.5) == BUDGET - 101 - WASTE
    roomy = Measured(BUDGET, BUDGET, BUDGET - WASTE)
    assert controller.by_excess(roomy.held_bytes, roomy) == BUDGET + WASTE


def test_a_limit_outside_of_the_known_ones_gives_way_to_their_middle():
    controller = LimitController(BUDGET)
    controller.low_bytes, controller.high_bytes = 100, 200
    assert [controller.inside(limit) for limit in (99, 100, 150, 199, 200)] == [
        150,
        150,
        150,
        199,
        150,
    ]


@pytest.mark.parametrize("waste", [WASTE, 3 * WASTE])
def test_a_problem_whose_program_wastes_alike_fits_in_the_second_round(waste):
    first = a_round(BUDGET, BUDGET, BUDGET + waste)
    limit_bytes = ProblemLimits(BUDGET).after_program(Measured.of(first), [first], fits=False)
    assert limit_bytes == BUDGET - waste - int(shares.LOWER * BUDGET)


def test_a_problem_rises_only_where_much_room_is_left():
    def after(needed_bytes):
        only = a_round(BUDGET, BUDGET, needed_bytes)
        return ProblemLimits(BUDGET).after_program(Measured.of(only), [only], fits=True)

    little, much = BUDGET * (1 - shares.ROOM / 2), BUDGET * (1 - 2 * shares.ROOM)
    assert after(int(little)) is None
    assert after(int(much)) == 2 * BUDGET - int(much)


def test_a_problem_ends_where_little_is_between_two_limits():
    over = a_round(BUDGET, BUDGET, BUDGET + WASTE)
    low = BUDGET - int(shares.PROBLEM_RISE * BUDGET)
    fits = a_round(low, low, BUDGET - 10)
    rounds = [over, fits]
    assert ProblemLimits(BUDGET).after_program(Measured.of(fits), rounds, fits=True) is None


def test_a_schedule_takes_back_what_was_taken_off_too_much():
    first = a_round(BUDGET, BUDGET, BUDGET + WASTE)
    limits = ScheduleLimits(BUDGET, varies=False)
    second_limit = limits.after_program(Measured.of(first), [first])
    assert second_limit == BUDGET - WASTE
    second = a_round(second_limit, second_limit, BUDGET - WASTE // 2)
    third = limits.after_program(Measured.of(second), [first, second])
    assert limits.has_best and third == BUDGET - WASTE // 2


def test_a_randomised_search_that_was_refused_does_not_go_lower():
    limits = ScheduleLimits(BUDGET, varies=True)
    first = a_round(BUDGET, BUDGET, BUDGET + WASTE)
    assert limits.after_refusal(BUDGET - WASTE, None, [first]) == BUDGET
    again = limits.after_program(Measured.of(first), [first, first])
    assert again == BUDGET - WASTE // 2


def test_overlapping_programs_fall_further_each_time_and_rise_halfway():
    limits = OverlapLimits(BUDGET)
    program = Measured(BUDGET, BUDGET, BUDGET + WASTE)
    nearer = limits.after_program(program, 0, is_tied=False)
    assert nearer == BUDGET - math.ceil(WASTE + shares.LITTLE_FURTHER * BUDGET)
    further = limits.after_program(program, 2, is_tied=False)
    assert further == BUDGET - math.ceil(WASTE + 2 * shares.FURTHER * BUDGET)
    fits = Measured(BUDGET - WASTE, BUDGET - WASTE, BUDGET - WASTE)
    assert limits.after_program(fits, 3, is_tied=False) == BUDGET - WASTE // 2
    assert limits.after_refusal(BUDGET - 10) is None


def test_an_overlapping_program_far_over_the_budget_is_not_aimed_at():
    limits = OverlapLimits(BUDGET)
    far = Measured(BUDGET, BUDGET, int(BUDGET * (1 + shares.MOST_OVER)) + 1)
    assert limits.after_program(far, 0, is_tied=False) is None


@given(
    planned_bytes=st.integers(0, 2 * BUDGET),
    needed_bytes=st.integers(0, 2 * BUDGET),
    tried=st.integers(0, 4),
    is_tied=st.booleans(),
)
def test_no_limit_is_negative_however_small_a_plan_is(planned_bytes, needed_bytes, tried, is_tied):
    """Without a budget a plan may need a thousandth of the device's memory."""
    program = Measured(BUDGET, planned_bytes, needed_bytes)
    limit_bytes = OverlapLimits(BUDGET).after_program(program, tried, is_tied=is_tied)
    assert limit_bytes is None or 0 < limit_bytes <= BUDGET


def test_a_problem_that_was_refused_rises_to_the_least_peak_that_was_found():
    limits, first = ProblemLimits(BUDGET), [a_round(BUDGET, BUDGET, BUDGET + WASTE)]
    assert limits.after_refusal(BUDGET - 2 * WASTE, first) == BUDGET - WASTE
    above, near = BUDGET - WASTE // 2, BUDGET - int(shares.LEAST_LOWERING * BUDGET)
    assert limits.after_refusal(BUDGET - 2 * WASTE, first, above) == above
    assert limits.after_refusal(BUDGET - 2 * WASTE, first, near) is None
