"""Policies of `jax.checkpoint` by names."""

import jax
import jax.numpy as jnp

from kiwi.hlo.checkpoint_names import checkpoints_left_out


def test_checkpoints_are_left_out():
    """A kernel with a rule of its own for gradients runs once, and nothing is recomputed."""

    @jax.custom_vjp
    def kernel(x):
        return jnp.sin(x)

    kernel.defvjp(lambda x: (jnp.sin(x), jnp.cos(x)), lambda cos, g: (g * cos,))

    def loss(x):
        return jnp.sum(jax.checkpoint(lambda x: jnp.tanh(kernel(x)))(x))

    x = jax.ShapeDtypeStruct((8,), "float32")
    assert str(jax.make_jaxpr(jax.grad(loss))(x)).count("sin ") == 2
    with checkpoints_left_out():
        saved = str(jax.make_jaxpr(jax.grad(loss))(x))
    assert saved.count("sin ") == saved.count("tanh") == 1
