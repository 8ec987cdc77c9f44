"""The common parts of all blocks.

A block is a function of parameters and an array, and returns an array of the same shape. Each
function `draw_…` of this package draws one kind of block: it takes the drawing and the sizes of the
model, and chooses one of the ways in which people write that kind. To add a kind, write such a
function and add it to `benchmarks.sampled.blocks`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

Params = Any
"""A pytree of arrays."""


@dataclass(frozen=True)
class Context:
    """The values that a block may read besides its input.

    - `key`: a key for dropout.
    - `memory`: the array that a decoder's cross attention reads, (batch, length, width).
    """

    key: jax.Array
    memory: jax.Array | None = None

    def for_part(self, number: int) -> "Context":
        """Returns the context with a key for one part of the model."""
        return Context(jax.random.fold_in(self.key, number), self.memory)


@dataclass(frozen=True)
class Block:
    """A part of a model.

    - `kind`: the name of the kind in the results.
    - `init`: a function from a key to parameters. The names "out" and "down" mark kernels whose
      first dimension holds hidden features. In all other kernels the last dimensions hold them.
    - `apply`: `apply(params, x, context)`, which returns an array of the shape of `x`.
    """

    kind: str
    init: Callable[[jax.Array], Params]
    apply: Callable[[Params, jax.Array, Context], jax.Array]


def kernel(key: jax.Array, *shape: int, fan_in: int | None = None) -> jax.Array:
    """Returns a float32 kernel whose result has the variance of its input."""
    return jax.random.normal(key, shape, jnp.float32) * (fan_in or shape[0]) ** -0.5


def keys(key: jax.Array, count: int) -> list[jax.Array]:
    """Returns `count` random keys."""
    return [jax.random.fold_in(key, number) for number in range(count)]


def dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """Applies inverted dropout. Returns `x` at rate 0."""
    if rate == 0.0:
        return x
    kept = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(kept, x / (1.0 - rate), jnp.zeros((), x.dtype))
