"""What all blocks have in common.

A block is a function of parameters and an array, which it maps to an array of the same shape. A
module of this package draws one kind: its function takes the drawing and the sizes of the model,
and chooses among the ways in which people write that kind. To add a kind, write such a function
and add it to `benchmarks.sampled.blocks`.
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
    """What a block may read beside its input.

    - `key`: for dropout.
    - `memory`: what a decoder's cross attention reads, (batch, length, width).
    """

    key: jax.Array
    memory: jax.Array | None = None

    def for_part(self, number: int) -> "Context":
        """The same with a key of its own."""
        return Context(jax.random.fold_in(self.key, number), self.memory)


@dataclass(frozen=True)
class Block:
    """A part of a model.

    - `kind`: what it is, as in the results.
    - `init`: parameters from a key. The names "out" and "down" mark kernels whose first dimension
      is that of hidden features; of all others it is the last dimensions.
    - `apply`: `apply(params, x, context)`, of the shape of `x`.
    """

    kind: str
    init: Callable[[jax.Array], Params]
    apply: Callable[[Params, jax.Array, Context], jax.Array]


def kernel(key: jax.Array, *shape: int, fan_in: int | None = None) -> jax.Array:
    """A float32 kernel that keeps the variance of what it multiplies."""
    return jax.random.normal(key, shape, jnp.float32) * (fan_in or shape[0]) ** -0.5


def keys(key: jax.Array, count: int) -> list[jax.Array]:
    """So many keys."""
    return [jax.random.fold_in(key, number) for number in range(count)]


def dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """Inverted dropout; nothing at rate 0."""
    if rate == 0.0:
        return x
    kept = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(kept, x / (1.0 - rate), jnp.zeros((), x.dtype))
