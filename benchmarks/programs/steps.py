"""The steps of a recipe, and the context that a program under construction passes to them."""

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
"""The largest number of elements of an array that an operation makes larger."""


@dataclass(frozen=True)
class Step:
    """One operation. `choice` selects its variant, operands and sizes; `body` holds the steps that
    a region runs."""

    name: str
    choice: int = 0
    body: "tuple[Step, ...]" = ()


class Digits:
    """Small numbers, taken one after another from one integer."""

    def __init__(self, choice: int) -> None:
        self._rest = choice

    def take(self, count: int) -> int:
        """Returns a number below `count`."""
        self._rest, digit = divmod(self._rest, count)
        return digit

    def axis(self, x: Array) -> int:
        """Returns an axis of an array with at least one dimension."""
        return self.take(x.ndim)


@dataclass(frozen=True)
class Inputs:
    """The inputs of a program besides its parameters: `tokens` are integers, `key` is a PRNG
    key."""

    tokens: Array
    key: Array


class Context:
    """Parameters by name, integers and keys.

    Without `params` the program is only traced for its shapes: `shapes` then records the parameters
    that it asks for. `iteration` is the number of the loop iteration, if any.
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
        """Returns a context made from `rest` and parameters, for functions that may not close over
        a context."""
        inputs, iteration = rest
        return cls(inputs, params, iteration)

    @property
    def rest(self) -> tuple[Inputs, Any]:
        """Everything except the parameters: the inputs, and the number of the iteration."""
        return self.inputs, self._iteration

    def param(self, name: str, shape: Sequence[int]) -> Array:
        """Returns the float32 parameter with this name, and records its shape."""
        self.shapes[name] = jax.ShapeDtypeStruct(tuple(shape), jnp.float32)
        return jnp.zeros(shape) if self._params is None else self._params[name]

    def params(self, shapes: dict[str, jax.ShapeDtypeStruct], copies: int | None) -> Any:
        """Returns the parameters of these shapes; with `copies`, that many of each, stacked."""
        lead = () if copies is None else (copies,)
        return {name: self.param(name, (*lead, *s.shape)) for name, s in shapes.items()}

    def key(self, name: str) -> Array:
        """Returns a random key that differs for each name and, in a loop, for each iteration."""
        key = jax.random.fold_in(self.inputs.key, zlib.crc32(name.encode()))
        return key if self._iteration is None else jax.random.fold_in(key, self._iteration)

    def inside(self, params: dict[str, Array] | None, iteration: Any = None) -> "Context":
        """Returns the context of a body with separate parameters. None records the parameters that
        the body asks for."""
        outer = self._iteration if iteration is None else iteration
        return Context(self.inputs, params, outer)

    def in_loop(self, iteration: Any) -> "Context":
        """Returns a context with the same parameters in an iteration of a loop."""
        context = Context(self.inputs, self._params, iteration)
        context.shapes = self.shapes
        return context


def fit(y: Array, like: Array) -> Array:
    """Returns `y` in the shape and type of `like`. If the shapes differ, adds the mean of `y` to
    `like`."""
    if y.shape != like.shape:
        return like + jnp.mean(y).astype(like.dtype)
    return y.astype(like.dtype)


def grows_too_large(x: Array, factor: int) -> bool:
    """Returns whether an array of `factor` times the size of `x` would be too large."""
    return prod(x.shape) * factor > LARGEST
