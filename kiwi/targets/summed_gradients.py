"""Shared examples of the witnesses for rules on sums over devices: a stack of layers, whose
gradients are summed over eight devices.
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
    """Returns the gradients of the stack as an example on eight devices.

    Each device holds a part of the batch and all weights. `width` is the side of each square
    weight. `way` is the number of the overlapping options, as in `Example`.
    """
    weights = (array(width, width),) * layers
    in_specs = (P("x"), *[P()] * layers)
    return Example(_gradients, (array(batch, width), *weights), (8,), in_specs, out_specs, way=way)


def data_parallel(batch: int, layers: int, width: int, *, way: int | None = None) -> Example:
    """Returns a stack whose gradients end up whole on each device, so that they are all-reduced."""
    return _stack(batch, layers, width, P(), way)


def fully_sharded(batch: int, layers: int, width: int, *, way: int | None = None) -> Example:
    """Returns a stack whose gradients end up cut over the devices, so that they are
    reduce-scattered."""
    return _stack(batch, layers, width, P("x"), way)
