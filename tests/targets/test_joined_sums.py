"""Partial sums that are combined, and partial sums that are added before devices exchange them."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from kiwi.hlo.grouping import build_units
from kiwi.hlo.large_operators import large_ones
from kiwi.hlo.lowering import lower
from kiwi.kernels.joined_sums import added_first, share_of_sums
from tests.helpers.planning import array, trace_flat, units_of

N = 64


def units_with_loops(function, *args):
    return build_units(lower(trace_flat(function, *args, open_loops=True)))


def gradients(units):
    """Returns the matmuls whose result is a matrix of the parameter's shape."""
    values = units.graph.program.values
    return [u for u in large_ones(units) if values[u.outputs[0]].shape == (N, N)]


def shares(units, *, adds_first=False):
    return [share_of_sums(units, u, adds_first=adds_first) for u in gradients(units)]


def used_three_times(w, x):
    def loss(w):
        return jnp.sum(jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w) ** 2)

    return w - 0.1 * jax.grad(loss)(w)


def two_layers(w, v, x):
    return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ v) ** 2)


def test_gradients_of_a_parameter_that_is_used_several_times_are_added_first():
    units = units_of(used_three_times, array(N, N), array(128, N))
    assert [added_first(units, u) for u in gradients(units)] == [3, 3, 3]
    # They share the latency of one exchange of all three, or are one exchange.
    assert shares(units) == pytest.approx([1 / 3] * 3)
    assert shares(units, adds_first=True) == [1.0] * 3


def test_a_sum_that_is_read_before_the_addition_is_exchanged_alone():
    def step(w, x, y):
        first, second = x.T @ y, y.T @ x
        return first + second, jnp.tanh(first)

    units = units_of(step, array(N, N), array(128, N), array(128, N))
    first, second = gradients(units)
    assert added_first(units, first) == 1 and added_first(units, second) == 1


def test_accumulated_gradients_wait_for_nothing_in_their_iteration():
    def step(w, xs):
        def micro(total, x):
            gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
            return total + gradient, None

        return lax.scan(micro, jnp.zeros((N, N)), xs)[0]

    units = units_with_loops(step, array(N, N), array(4, 128, N))
    assert shares(units) == [1.0]
    assert all(unit.loop is not None for unit in gradients(units))

    def two(w, v, xs):
        def micro(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(two_layers, (0, 1))(w, v, x)), None

        return lax.scan(micro, (jnp.zeros((N, N)),) * 2, xs)[0]

    units = units_with_loops(two, array(N, N), array(N, N), array(4, 128, N))
    assert shares(units) == pytest.approx([0.5, 0.5])


def test_what_the_next_iteration_multiplies_is_waited_for():
    def step(w, xs):
        def micro(w, x):
            return w - 0.1 * jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w), None

        return lax.scan(micro, w, xs)[0]

    def two_of_them(w, v, xs):
        def micro(carry, x):
            gradients = jax.grad(two_layers, (0, 1))(*carry, x)
            return jax.tree.map(lambda w, g: w - 0.1 * g, carry, gradients), None

        return lax.scan(micro, (w, v), xs)[0]

    assert shares(units_with_loops(step, array(N, N), array(4, 128, N))) == [1.0]
    units = units_with_loops(two_of_them, array(N, N), array(N, N), array(4, 128, N))
    assert shares(units) == [1.0, 1.0]
