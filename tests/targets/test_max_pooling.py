"""The memory that compilers hold for the gradient of max pooling."""

import jax
import jax.numpy as jnp

from kiwi.solver.problem import Interval
from tests.helpers.planning import array, kernels_of, units_of

GPU = "h100-sxm"


def held_early(units, unit, profile, result_bytes):
    """Returns the intervals that a target holds from the start of the step for a unit."""
    kernel = kernels_of(units, profile)[unit.index]
    return tuple(held.interval(result_bytes) for held in kernel.held_early)


def without_barriers(units, unit, profile):
    """Returns the intervals that it also holds if no barrier prevents it."""
    kernel = kernels_of(units, profile)[unit.index]
    return tuple(held.interval(1024) for held in kernel.held_early_without_barriers)


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
    assert held_early(units, unit, "cpu", size) == (Interval(0, unit.index + 1, 4 * size),)
    assert held_early(units, unit, GPU, size) == ()


def test_indices_have_four_bytes_whatever_the_dtype():
    units = units_of(jax.grad(pooled), array(2, 8, 8, 4, dtype="bfloat16"))
    size = 2 * 8 * 8 * 4 * 2
    assert held_early(units, gradient_of(units), "cpu", size)[0].bytes == 4 * 2 * size


def test_what_is_found_is_held_a_value_and_an_index_per_dimension():
    units = units_of(jax.grad(pooled), array(2, 8, 8, 4))
    selected = {k.unit.index: k.workspace_of_result for k in kernels_of(units).kernels}
    found = selected.pop(gradient_of(units).index)
    assert found is not None and found.local_bytes(1024) == 1024 // 4 * 5
    assert not any(selected.values())


def test_without_fences_the_zeros_are_there_from_the_start():
    units = units_of(jax.grad(pooled), array(2, 8, 8, 4))
    unit = gradient_of(units)
    for profile in ("cpu", GPU):
        found = without_barriers(units, unit, profile)
        assert found == (Interval(0, unit.index + 1, 1024),)
    assert without_barriers(units, units.units[0], GPU) == ()


def test_without_fences_a_gpu_makes_them_with_the_zeros_of_a_relu_and_of_its_gradient():
    def loss(w, x):
        return pooled(jax.nn.relu(jnp.sin(x) @ w))

    units = units_of(jax.grad(loss), array(4, 4), array(2, 8, 8, 4))
    unit = gradient_of(units)
    relu = units.units[unit.index + 1]  # Its gradient: g where x > 0, else 0.
    assert without_barriers(units, unit, GPU) == (
        Interval(0, unit.index + 1, 1024),
        Interval(0, relu.index + 1, 1024),
    )
