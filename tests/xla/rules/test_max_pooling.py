"""What compilers hold for the gradient of max pooling."""

import jax
import jax.numpy as jnp

from kiwi.solver.problem import Interval
from kiwi.xla.cpu.compiler import CPU
from kiwi.xla.gpu.compiler import GPU
from kiwi.xla.rules.max_pooling import found_bytes
from tests.helpers.planning import array, units_of


def pooled(x):
    window = (1, 2, 2, 1)
    most = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    return (most * jnp.cos(most)).sum()


def gradient_of(units):
    program = units.graph.program
    name = "select_and_scatter_add"
    return next(u for u in units.units if program.equations[u.root].name == name)


def test_a_cpu_holds_an_index_array_per_dimension_from_the_start():
    units = units_of(jax.grad(pooled), array(2, 8, 8, 4))
    unit, size = gradient_of(units), 2 * 8 * 8 * 4 * 4
    assert CPU.rules.held_from_start(units, unit, size, 1) == (
        Interval(0, unit.index + 1, 4 * size),
    )
    assert GPU.rules.held_from_start(units, unit, size, 1) == ()


def test_indices_have_four_bytes_whatever_the_dtype():
    units = units_of(jax.grad(pooled), array(2, 8, 8, 4, dtype="bfloat16"))
    size = 2 * 8 * 8 * 4 * 2
    assert CPU.rules.held_from_start(units, gradient_of(units), size, 1)[0].bytes == 4 * 2 * size


def test_what_is_found_is_held_a_value_and_an_index_per_dimension():
    units = units_of(jax.grad(pooled), array(2, 8, 8, 4))
    assert found_bytes(units, gradient_of(units), 1024) == 1024 // 4 * 5
    assert all(found_bytes(units, u, 1024) == 0 for u in units.units if u != gradient_of(units))


def test_without_fences_the_zeros_are_there_from_the_start():
    units = units_of(jax.grad(pooled), array(2, 8, 8, 4))
    unit = gradient_of(units)
    for compiler in (CPU, GPU):
        found = compiler.rules.held_without_barriers(units, unit, 1024)
        assert found == (Interval(0, unit.index + 1, 1024),)
    assert GPU.rules.held_without_barriers(units, units.units[0], 1024) == ()


def test_without_fences_a_gpu_makes_them_with_the_zeros_of_a_relu_and_of_its_gradient():
    def loss(w, x):
        return pooled(jax.nn.relu(jnp.sin(x) @ w))

    units = units_of(jax.grad(loss), array(4, 4), array(2, 8, 8, 4))
    unit = gradient_of(units)
    relu = units.units[unit.index + 1]  # Its gradient: g where x > 0, else 0.
    assert GPU.rules.held_without_barriers(units, unit, 1024) == (
        Interval(0, unit.index + 1, 1024),
        Interval(0, relu.index + 1, 1024),
    )
