"""Searches that a limit of work ends: the same on fast, slow and busy machines."""

import itertools
import math

import numpy as np
import pytest

from kiwi.solver import SolveResult, engine, lagrangian, solve
from kiwi.solver.effort import (
    EFFORTS,
    LARGE_STEP,
    LEAST_SECONDS,
    WORK_PER_SECOND,
    Allowance,
    effort_work,
)
from kiwi.solver.least_peak import least_peak
from kiwi.solver.network import build_network
from kiwi.solver.toulbar import solve_priced
from tests.solver.test_limits import knotted_problem

LIMIT = 30_000_000


@pytest.fixture(autouse=True)
def no_oracle(monkeypatch):
    """Turns the oracle off, so that rounds take less than a second."""
    monkeypatch.setattr(lagrangian, "oracle_for", lambda net, seed: None)


def searched(work_limit: int | None = LIMIT, **options) -> SolveResult:
    """Returns the result of a search that soon ends, and only by work."""
    return solve(
        knotted_problem(),
        solver="lagrangian",
        gap=0.0,
        time_limit_seconds=1e6,
        work_limit=work_limit,
        **options,
    )


def test_more_work_is_never_worse():
    found = [searched(limit) for limit in (LIMIT // 2, LIMIT, 2 * LIMIT)]
    for less, more in itertools.pairwise(found):
        assert less.work < more.work and less.iterations < more.iterations
        assert less.objective >= more.objective and less.bound <= more.bound
        assert less.deterministic
    assert LIMIT < found[1].work < 2 * LIMIT


def test_a_machine_a_thousand_times_as_slow_finds_the_same(monkeypatch):
    alone, clock = searched(), itertools.count(0, 10)
    for module in (engine, lagrangian):
        monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    slow = searched()
    assert next(clock) > 100, "the clock was not asked"
    assert (slow.solution, slow.bound, slow.work) == (alone.solution, alone.bound, alone.work)
    assert slow.deterministic


def test_the_clock_that_ends_a_search_says_so(monkeypatch):
    clock = itertools.count(0, 10)
    monkeypatch.setattr(engine.time, "monotonic", lambda: next(clock))
    late = solve(knotted_problem(), solver="lagrangian", gap=0.0, time_limit_seconds=500)
    assert not late.deterministic


def test_no_work_is_left_but_for_the_first_rounds():
    found = searched(0)
    assert found.solution is not None and found.iterations == lagrangian.LEAST_ROUNDS


def test_the_search_for_the_least_peak_ends_by_work_and_counts_it():
    net = build_network(knotted_problem())
    unlimited = least_peak(net, 0, math.inf, None)
    limited = least_peak(net, 0, math.inf, None, most_work=unlimited.work / 10)
    assert 0 < limited.work < unlimited.work
    assert limited.found_bytes >= unlimited.found_bytes


def test_toulbar2_answers_the_same_again():
    """It adapts how far it searches in depth, and keeps that for what comes next."""
    net = build_network(knotted_problem())
    first, again = (solve_priced(net, net.cost, 0, None, 500) for _ in range(2))
    assert first[1:] == again[1:]
    np.testing.assert_array_equal(first[0], again[0])


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_allowances_are_shared_and_spent(share: float):
    whole = Allowance(EFFORTS["normal"] * WORK_PER_SECOND, 600.0)
    part = whole.part(share)
    rest = whole.less(part)
    np.testing.assert_allclose(
        [rest.work, rest.seconds], [part.work / share - part.work, 600 - 600 * share]
    )
    assert part.planned_seconds == pytest.approx(60 * share)
    assert rest.less(whole) == Allowance(0, 0)
    assert Allowance(whole.work, 5.0).planned_seconds == 5.0


def test_small_steps_are_allowed_less_but_by_thorough():
    seconds = [effort_work("normal", n) / WORK_PER_SECOND for n in (10, LARGE_STEP // 2, 10_000)]
    assert seconds == [LEAST_SECONDS, EFFORTS["normal"] / 2, EFFORTS["normal"]]
    assert effort_work("quick", 10) == LEAST_SECONDS * WORK_PER_SECOND
    assert effort_work("thorough", 10) == effort_work("thorough")
    assert effort_work("normal") == EFFORTS["normal"] * WORK_PER_SECOND
