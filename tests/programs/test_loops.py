"""Loops under plans: what random programs found once."""

import jax
import jax.numpy as jnp
import numpy as np

import kiwi


def agree(function, *args, mesh_shape=(2,), **options):
    planned = kiwi.jit(function, mesh_shape=mesh_shape, verify=None, **options)
    expected = jax.tree.leaves(jax.jit(function)(*args))
    for got, wanted in zip(jax.tree.leaves(planned(*args)), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_carries_that_start_alike_stay_apart():
    """As sums of gradients do: they start from zeros of one shape."""

    def sums(x):
        zeros = jnp.zeros(x.shape[1])
        step = lambda carry, row: ((carry[0] + row, carry[1] - 2 * row), None)  # noqa: E731
        return jax.lax.scan(step, (zeros, zeros), x)[0]

    agree(sums, jnp.arange(24.0).reshape(4, 6))


def test_loops_on_little_data_compile():
    """XLA:CPU makes one kernel of them, in which it could not emit the plan's barriers."""

    def loss(w, x):
        layer = lambda x, w: (jnp.tanh(jnp.tanh(x @ w) @ w), None)  # noqa: E731
        return jnp.mean(jax.lax.scan(layer, x, w)[0] ** 2)

    agree(jax.value_and_grad(loss), jnp.full((3, 8, 8), 0.1), jnp.ones((4, 8)))
