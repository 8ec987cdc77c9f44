"""The gradient of max pooling under a plan: its numbers, and the buffer that it no longer holds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import kiwi
from tests.helpers.planning import array, random_arrays
from tests.xla.gpu.test_compiler import needs_compiler

WINDOW, STRIDES = (1, 3, 3, 1), (1, 2, 2, 1)


def step(padding, select, w, x):
    """A convolution, a relu and a pooling, reduced to a loss, with the gradient of the kernel."""
    initial = -jnp.inf if select is lax.max else jnp.inf

    def loss(w):
        numbers = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)
        y = lax.reduce_window(jax.nn.relu(y), initial, select, WINDOW, STRIDES, padding)
        return jnp.sum(jnp.sin(y) * y)

    return w - 0.01 * jax.grad(loss)(w)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("select", [lax.max, lax.min])
@pytest.mark.parametrize("mesh_shape", [(1,), (2, 4)])
def test_the_gradient_is_that_of_jax(padding, select, mesh_shape):
    function = functools.partial(step, padding, select)
    w, x = random_arrays([array(3, 3, 4, 16), array(8, 64, 64, 4)], seed=3)
    planned = kiwi.jit(function, mesh_shape=mesh_shape, verify=None, time_limit_seconds=2.0)
    np.testing.assert_allclose(planned(w, x), jax.jit(function)(w, x), rtol=2e-4, atol=2e-4)


@needs_compiler
@pytest.mark.parametrize("activation", [jax.nn.relu, jnp.tanh])
def test_a_gpu_makes_the_zeros_that_it_adds_to_when_it_needs_them(activation):
    """And does not share them with a relu: by itself XLA holds both from early on."""

    def update(kernels, x):
        def loss(kernels):
            y = x
            for kernel in kernels:
                numbers = ("NHWC", "HWIO", "NHWC")
                y = lax.conv_general_dilated(y, kernel, (1, 1), "SAME", dimension_numbers=numbers)
                window = (1, 2, 2, 1)
                y = lax.reduce_window(activation(y), -jnp.inf, lax.max, window, window, "VALID")
            return jnp.sum(y**2)

        gradients = jax.grad(loss)(kernels)
        return [w - 0.1 * g for w, g in zip(kernels, gradients, strict=True)]

    kernels = [array(3, 3, a, b) for a, b in ((3, 16), (16, 32), (32, 64))]
    options = {"mesh_shape": (1,), "profile": "h100-sxm", "verify": "cuda", "donate_argnums": 0}
    found = kiwi.plan(update, kernels, array(32, 128, 128, 3), **options)
    assert found.compiled is not None
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.001)
    assert found.compiled.peak_bytes < 120 * 2**20
