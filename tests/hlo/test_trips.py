"""The trip count of a `while`, from its condition or from the user."""

import jax
import jax.numpy as jnp
import pytest

from kiwi.hlo.loops import LoopKind
from kiwi.hlo.trips import DEFAULT_TRIPS
from tests.helpers.planning import array, trace_flat


def trips(condition, body, *start, **options):
    """Returns the trip count of a loop over a counter, with an array in its carry."""

    def f(x):
        state = (*start, x)
        return [jax.lax.while_loop(lambda s: condition(*s), lambda s: body(*s), state)[-1]]

    (loop,) = trace_flat(f, array(4), open_loops=True, **options).loops
    assert loop.kind is LoopKind.WHILE
    return loop.runs


@pytest.mark.parametrize(
    ("condition", "step", "start", "found"),
    [
        (lambda k: k < 7, 1, 0, 7),
        (lambda k: k <= 7, 2, 1, 4),
        (lambda k: k > 3, -1, 10, 7),
        (lambda k: k != 6, 3, 0, 2),
        (lambda k: k >= 0, -4, 9, 3),
        (lambda k: k < 0, 1, 5, 1),  # a body that never runs still has to be planned
    ],
)
def test_a_counter_compared_with_a_literal(condition, step, start, found):
    assert trips(lambda k, x: condition(k), lambda k, x: (k + step, x * 2), start) == found


def test_a_limit_that_is_carried_along():
    assert trips(lambda k, n, x: k < n, lambda k, n, x: (k + 1, n, x * 2), 2, 8) == 6
    changed = trips(lambda k, n, x: k < n, lambda k, n, x: (k + 1, n - 1, x * 2), 2, 8)
    assert changed == DEFAULT_TRIPS


def test_a_bound_beside_another_condition():
    body = lambda k, x: (k + 1, x * 2)  # noqa: E731
    assert trips(lambda k, x: (k < 3) & (x.sum() > 0), body, 0) == 3
    assert trips(lambda k, x: (k < 300) & (x.sum() > 0), body, 0) == DEFAULT_TRIPS
    assert trips(lambda k, x: (k < 300) & (x.sum() > 0), body, 0, while_trips=40) == 40


def test_the_user_says_it():
    until = lambda x: x.sum() > 0  # noqa: E731

    def body(x):
        return (x * 2,)

    assert trips(until, body) == DEFAULT_TRIPS
    assert trips(until, body, while_trips=25) == 25
    assert trips(until, body, while_trips={"nowhere": 3, "test_trips.py": 4}) == 4

    def f(x):
        with jax.named_scope("solve"):
            return [jax.lax.while_loop(lambda x: jnp.any(x > 0), lambda x: x - 1, x)]

    (loop,) = trace_flat(f, array(4), open_loops=True, while_trips={"solve": 6}).loops
    assert loop.runs == 6
