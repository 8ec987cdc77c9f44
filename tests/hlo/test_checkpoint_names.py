"""Policies of `jax.checkpoint` by names."""

import jax
import jax.numpy as jnp

from kiwi.hlo.checkpoint_names import everything_saved


def test_everything_is_saved():
    """A kernel with a rule of its own for gradients runs once, and nothing is recomputed."""

    @jax.custom_vjp
    def kernel(x):
        return jnp.sin(x)

    kernel.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda cos, g: (g * cos,))

    def loss(x):
        return jnp.sum(jax.checkpoint(lambda x: jnp.tanh(kernel(x)))(x))

    x = jax.ShapeDtypeStruct((8,), "float32")
    assert str(jax.make_jaxpr(jax.grad(loss))(x)).count("sin ") == 2
    with everything_saved():
        saved = str(jax.make_jaxpr(jax.grad(loss))(x))
    assert saved.count("sin ") == saved.count("tanh") == 1
