"""Memory inside of regions."""

import jax
import jax.numpy as jnp

from kiwi.hlo.regions import region_workspace_bytes

ROWS, WIDTH = 64, 32


def workspace_bytes(body):
    x = jnp.ones((ROWS, WIDTH))
    jaxpr = jax.make_jaxpr(lambda x: jax.lax.cond(x[0, 0] > 0, body, jnp.sin, x))(x)
    return region_workspace_bytes(next(e for e in jaxpr.eqns if e.primitive.name == "cond"))


def test_an_operand_that_is_repeated_along_dimensions_of_one_is_fused():
    """One number for each row; what is multiplied by it never is an array."""

    def normalised(x):
        return jnp.tanh(x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True)))

    assert workspace_bytes(normalised) <= 2 * ROWS * 4


def test_products_of_square_matrices_are_arrays():
    square = lambda x: jnp.sin((x.T @ x) @ jnp.cos(x.T)).T  # noqa: E731
    assert workspace_bytes(square) >= WIDTH * WIDTH * 4
