"""Steps of a recipe, and what a program under construction hands to them."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

Array: TypeAlias = jax.Array
Run: TypeAlias = "Callable[[Sequence[Step], Array, Context, str], Array]"

LARGEST = 4096
"""Elements from which on nothing grows."""


@dataclass(frozen=True)
class Step:
    """One operation; `choice` decides on what and how, `body` is what a region runs."""

    name: str
    choice: int = 0
    body: "tuple[Step, ...]" = ()


class Digits:
    """Small numbers from one integer."""

    def __init__(self, choice: int) -> None:
        self._rest = choice

    def take(self, count: int) -> int:
        """A number below `count`."""
        self._rest, digit = divmod(self._rest, count)
        return digit

    def axis(self, x: Array) -> int:
        """An axis of an array that has one."""
        return self.take(x.ndim)


@dataclass(frozen=True)
class Inputs:
    """What a program reads besides its parameters: `tokens` are integers, `key` a PRNG key."""

    tokens: Array
    key: Array


class Context:
    """Parameters by name, integers and keys.

    Without `params` the program is only traced for its shapes: `shapes` then records the
    parameters that it asks for. `iteration` is the number of the loop iteration, if any.
    """

    def __init__(
        self, inputs: Inputs, params: dict[str, Array] | None = None, iteration: Any = None
    ) -> None:
        self.inputs = inputs
        self.shapes: dict[str, jax.ShapeDtypeStruct] = {}
        self._params = params
        self._iteration = iteration

    @classmethod
    def of(cls, rest: Any, params: dict[str, Array]) -> "Context":
        """From what `rest` gives, for functions that may not close over it."""
        inputs, iteration = rest
        return cls(inputs, params, iteration)

    @property
    def rest(self) -> tuple[Inputs, Any]:
        """All but the parameters: inputs, and the number of the iteration."""
        return self.inputs, self._iteration

    def param(self, name: str, shape: Sequence[int]) -> Array:
        """The parameter of a name, float32."""
        self.shapes[name] = jax.ShapeDtypeStruct(tuple(shape), jnp.float32)
        return jnp.zeros(shape) if self._params is None else self._params[name]

    def params(self, shapes: dict[str, jax.ShapeDtypeStruct], copies: int | None) -> Any:
        """The parameters of these shapes, or as many copies of each, stacked."""
        lead = () if copies is None else (copies,)
        return {name: self.param(name, (*lead, *s.shape)) for name, s in shapes.items()}

    def key(self, name: str) -> Array:
        """A key of its own for each name, and in a loop for each iteration."""
        key = jax.random.fold_in(self.inputs.key, zlib.crc32(name.encode()))
        return key if self._iteration is None else jax.random.fold_in(key, self._iteration)

    def inside(self, params: dict[str, Array] | None, iteration: Any = None) -> "Context":
        """The context of a body with parameters of its own; None records them."""
        outer = self._iteration if iteration is None else iteration
        return Context(self.inputs, params, outer)

    def in_loop(self, iteration: Any) -> "Context":
        """The same parameters in an iteration of a loop."""
        found = Context(self.inputs, self._params, iteration)
        found.shapes = self.shapes
        return found


def fit(y: Array, like: Array) -> Array:
    """`y` in the shape and type of `like`; of another shape only its mean counts."""
    if y.shape != like.shape:
        return like + jnp.mean(y).astype(like.dtype)
    return y.astype(like.dtype)


def grows_too_large(x: Array, factor: int) -> bool:
    """Whether an array of `factor` times the size would be too large."""
    return prod(x.shape) * factor > LARGEST
