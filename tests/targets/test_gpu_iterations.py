"""Iterations of recurrences on GPUs: the predicted and the compiled number of launches."""

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import kiwi
from kiwi.hlo.loops import CARRY, SLICE
from kiwi.mesh import hardware
from tests.helpers.planning import array, kernels_of

needs_compiler = pytest.mark.skipif(
    find_spec("jax_cuda12_plugin") is None, reason="the extra aot-cuda is not installed"
)
LAUNCH_SECONDS = hardware("h100-sxm").kernel_launch_seconds
LENGTH, ROWS, WIDTH = 256, 32, 128


def recurrent(x, w, u, *, step):
    """A recurrence over the first dimension of `x`, and the mean of its final carry."""

    def body(carry, x):
        return step(carry, x, w, u), None

    zeros = jnp.zeros((ROWS, WIDTH))
    return lax.scan(body, (zeros, zeros), x)[0][0].mean()


def lstm(carry, x, w, u):
    h, c = carry
    gate = x @ w + h @ u
    c = jax.nn.sigmoid(gate) * c + jnp.tanh(gate)
    return jnp.tanh(c), c


def logarithmic(carry, x, w, u):
    """Sums of probabilities by their logarithms, as in losses over alignments."""
    a, b = carry
    a = jnp.logaddexp(a + x, b)
    return a, jnp.logaddexp(a, b - x)


ARGUMENTS = array(LENGTH, ROWS, WIDTH), array(WIDTH, WIDTH), array(WIDTH, WIDTH)


@pytest.mark.parametrize(("step", "is_taken"), [(lstm, False), (logarithmic, True)])
def test_slices_are_taken_by_all_readers_but_libraries(step, is_taken):
    found = kiwi.jit(lambda *args: recurrent(*args, step=step), mesh_shape=(1,), profile="h100-sxm")
    units = found.traced(*ARGUMENTS).units
    slices = [unit for unit in units.units if units.border(unit) == SLICE]
    kernels = kernels_of(units)
    assert slices and all(kernels[unit.index].in_readers == is_taken for unit in slices)


@pytest.mark.parametrize(("rows", "are_stored"), [(32, False), (16_384, True)])
def test_small_sums_of_an_iteration_are_computed_in_their_readers(rows, are_stored):
    def summed(x):
        def body(carry, x):
            total = jnp.cos(carry[0]) + x
            return (jnp.tanh(total) + carry[1], total * carry[1]), None

        return lax.scan(body, (x[0], x[1]), x)[0]

    found = kiwi.jit(summed, mesh_shape=(1,), profile="h100-sxm")
    units = found.traced(array(LENGTH, rows, WIDTH)).units
    borders = {units.border(unit) for unit in units.units if unit.loop is not None}
    in_body = [u for u in units.units if u.loop is not None and units.border(u) is None]
    assert {SLICE, CARRY} <= borders
    assert len(in_body) == 2 + are_stored


@needs_compiler
@pytest.mark.parametrize("step", [lstm, logarithmic])
def test_the_time_of_a_recurrence_is_that_of_its_schedule(step):
    gradient = jax.grad(lambda *args: recurrent(*args, step=step), (0, 1, 2))
    options = {"mesh_shape": (1,), "profile": "h100-sxm", "verify": "cuda"}
    found = kiwi.plan(gradient, *ARGUMENTS, **options)
    assert found.compiled is not None and found.compiled.step_seconds is not None
    assert found.estimate.step_seconds > LENGTH * LAUNCH_SECONDS
    assert found.compiled.step_seconds == pytest.approx(found.estimate.step_seconds, rel=0.25)
