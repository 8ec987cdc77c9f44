"""What XLA holds from the start of the step because nothing tells it to wait."""

import jax
import jax.numpy as jnp

from kiwi.solver.problem import Interval
from kiwi.strategy.hoisted import hoisted
from tests.helpers.planning import array, units_of


def pooled(x):
    window = (1, 2, 2, 1)
    most = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    return (most * jnp.cos(most)).sum()


def unit_of(units, name):
    program = units.graph.program
    return next(u for u in units.units if program.equations[u.root].name == name)


def test_max_pooling_on_a_cpu_holds_an_index_array_per_dimension_and_zeros():
    units = units_of(jax.grad(pooled), array(2, 8, 8, 4))
    unit = unit_of(units, "select_and_scatter_add")
    size = 2 * 8 * 8 * 4 * 4
    assert hoisted(units, unit, size, "cpu") == (Interval(0, unit.index + 1, 5 * size),)


def test_max_pooling_on_a_gpu_holds_the_zeros_that_it_adds_to():
    units = units_of(jax.grad(pooled), array(2, 8, 8, 4))
    unit = unit_of(units, "select_and_scatter_add")
    assert hoisted(units, unit, 1024, "cuda") == (Interval(0, unit.index + 1, 1024),)


def test_a_gpu_makes_them_with_the_zeros_of_a_relu_and_of_its_gradient():
    def loss(w, x):
        return pooled(jax.nn.relu(jnp.sin(x) @ w))

    units = units_of(jax.grad(loss), array(4, 4), array(2, 8, 8, 4))
    pooling = unit_of(units, "reduce_window_max")
    unit = unit_of(units, "select_and_scatter_add")
    gradient = units.units[unit.index + 1]  # The relu's: g where x > 0, else 0.
    assert hoisted(units, unit, 1024, "cuda") == (
        Interval(pooling.index, unit.index + 1, 1024),
        Interval(pooling.index, gradient.index + 1, 1024),
    )


def test_index_arrays_have_four_bytes_whatever_the_dtype():
    units = units_of(jax.grad(pooled), array(2, 8, 8, 4, dtype="bfloat16"))
    unit = unit_of(units, "select_and_scatter_add")
    size = 2 * 8 * 8 * 4 * 2
    assert hoisted(units, unit, size, "cpu")[0].bytes == size + 4 * 2 * size


def test_a_scan_holds_its_stacked_results_and_not_its_carry():
    def step(w, x):
        y = jnp.sin(x @ w)
        final, stacked = jax.lax.scan(lambda c, v: (c + v, c * v), y[0], y)
        return final.sum() + stacked.sum()

    units = units_of(step, array(8, 8), array(16, 8))
    unit = unit_of(units, "scan")
    carry, stacked = 8 * 4, 16 * 8 * 4
    found = hoisted(units, unit, carry + stacked, "cpu")
    assert found == (Interval(0, unit.index, stacked),)


def _embedding_gradient(table, ids):
    return jax.grad(lambda t: jnp.sin(t[ids]).sum())(table)


def test_zeros_that_a_gradient_is_scattered_onto_are_held_by_a_cpu():
    arguments = array(64, 32), array(16, dtype="int32")
    units = units_of(lambda t, ids: t - _embedding_gradient(t, ids), *arguments)
    unit = unit_of(units, "scatter-add")
    size = 64 * 32 * 4
    assert hoisted(units, unit, size, "cpu") == (Interval(0, unit.index, size),)
    assert hoisted(units, unit, size, "cuda") == ()
    units = units_of(_embedding_gradient, *arguments)
    assert hoisted(units, unit_of(units, "scatter-add"), size, "cpu") == ()


def test_everything_else_holds_nothing():
    units = units_of(lambda x: jnp.sin(x @ x), array(8, 8))
    assert all(hoisted(units, u, 256, "cpu") == () for u in units.units)
