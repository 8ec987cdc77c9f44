"""The common part of the witnesses for rules of summed gradients: a stack whose gradients are
summed.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.targets.witness import Example, array


def _gradients(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
    def loss(weights: tuple[jax.Array, ...]) -> jax.Array:
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return y.sum()

    return jax.grad(loss)(weights)


def _stack(batch: int, layers: int, width: int, out_specs: Any, way: int | None) -> Example:
    """The stack on eight devices. Each device has a part of the batch and all weights."""
    weights = (array(width, width),) * layers
    in_specs = (P("x"), *[P()] * layers)
    return Example(_gradients, (array(batch, width), *weights), (8,), in_specs, out_specs, way=way)


def data_parallel(batch: int, layers: int, width: int, *, way: int | None = None) -> Example:
    """Each device ends with the whole gradients: they are all-reduced."""
    return _stack(batch, layers, width, P(), way)


def fully_sharded(batch: int, layers: int, width: int, *, way: int | None = None) -> Example:
    """Each device ends with a part of the gradients: they are reduce-scattered."""
    return _stack(batch, layers, width, P("x"), way)
