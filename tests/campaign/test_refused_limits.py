"""A refused limit is not searched again, nor a limit below the least peak that was found."""

from dataclasses import replace

import numpy as np

from kiwi.campaign.refused_limits import RefusedLimits
from kiwi.solver import Problem, SolveResult
from kiwi.solver.problem import Interval, Node
from kiwi.solver.result import conclude

NODE = Node("a", np.array([1.0]), ((Interval(0, 1, 60),),))


def problem(limit_bytes: int, **more: int) -> Problem:
    return Problem([NODE], [], limit_bytes=limit_bytes, horizon=1, **more)


def refused(least_bytes: int | None = None, proven_bytes: int | None = None) -> SolveResult:
    return conclude(
        problem(50),
        None,
        0.0,
        solver="auto",
        least_peak_bytes=least_bytes,
        least_peak_bound_bytes=proven_bytes,
    )


def test_no_lower_limit_than_a_refused_one_is_searched():
    limits, result = RefusedLimits(), refused()
    assert limits.known(problem(40)) is None
    limits.take(problem(50), result)
    assert limits.known(problem(40)) is result is limits.known(problem(50))
    assert limits.known(problem(51)) is None


def test_no_limit_below_the_least_peak_is_searched_once_there_is_a_plan():
    limits = RefusedLimits()
    limits.take(problem(50), refused(least_bytes=58))
    assert limits.least_peak_bytes == 58 and limits.known(problem(57)) is None
    limits.take(problem(60), conclude(problem(60), (0,), 0.0, solver="auto"))
    assert limits.known(problem(57)) is not None and limits.known(problem(58)) is None


def test_a_plan_shows_that_the_least_peak_was_not_found():
    limits, solved = RefusedLimits(), conclude(problem(60), (0,), 0.0, solver="auto")
    limits.take(problem(60), solved)
    limits.take(problem(50), refused(least_bytes=80))
    assert limits.known(problem(59)) is not None and limits.known(problem(70)) is None


def test_what_is_proven_is_proven():
    limits = RefusedLimits()
    limits.take(problem(50), refused(least_bytes=90, proven_bytes=70))
    assert limits.known(problem(69)) is not None


def test_a_search_that_the_clock_ended_tells_nothing():
    limits = RefusedLimits()
    limits.take(problem(50), replace(refused(), deterministic=False))
    limits.take(problem(50, host_limit_bytes=10), refused())
    assert limits.known(problem(40)) is None
