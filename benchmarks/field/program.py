"""The definition of a program of the field, the register of programs, and their shared parts."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

Step = Callable[..., Any]
Init = Callable[[jax.Array], tuple[Any, ...]]
"""A function from a random key to the arguments of a step."""
Made = tuple[Step, Init]


@dataclass(frozen=True)
class Program:
    """A training step of a public kind.

    - `stands_for`: the programs that are written like it.
    - `build`: a function from sizes to the step and its initialiser. Its defaults are the full
      sizes.
    - `small`: the sizes of the copy that runs on CPU devices.
    - `donated`: positions of arguments that the step may overwrite.
    - `profiles`: the profiles that it can be compiled for; None for all.
    - `rounds`: the reason why numbers may differ by more than `EQUAL`.
    - `context`: a context that the step must run in, such as `jax.set_mesh`.
    """

    name: str
    stands_for: str
    build: Callable[..., Made]
    small: dict[str, Any]
    donated: tuple[int, ...] = (0,)
    profiles: tuple[str, ...] | None = None
    rounds: str = ""
    context: Callable[[], AbstractContextManager[Any]] = nullcontext

    def make(self, small: bool = False) -> Made:
        """Returns the step and its initialiser."""
        return self.build(**(self.small if small else {}))

    def make_args(self, small: bool = False) -> tuple[Any, ...]:
        """Returns the arguments as shapes."""
        with self.context():
            return jax.eval_shape(self.make(small)[1], jax.random.key(0))

    def draw_args(self, small: bool = True) -> tuple[Any, ...]:
        """Returns the arguments as arrays."""
        with self.context():
            return jax.jit(self.make(small)[1])(jax.random.key(0))


PROGRAMS: dict[str, Program] = {}


def program(
    small: dict[str, Any],
    donated: tuple[int, ...] = (0,),
    profiles: tuple[str, ...] | None = None,
    rounds: str = "",
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Registers a builder under its own name. The builder's docstring becomes `stands_for`."""

    def register(build: Callable[..., Made]) -> Callable[..., Made]:
        name: str = build.__name__
        stands_for = " ".join((build.__doc__ or "").split()).removesuffix(".")
        PROGRAMS[name] = Program(name, stands_for, build, small, donated, profiles, rounds, context)
        return build

    return register


def adam(learning_rate: float = 1e-3) -> optax.GradientTransformation:
    """Returns Adam with a larger epsilon, so that rounding errors of zero gradients do not become
    whole steps."""
    return optax.adam(learning_rate, eps=1e-5)


def trained(
    loss: Callable[[Any, Any], jax.Array],
    init_params: Callable[[jax.Array], Any],
    draw_batch: Callable[[jax.Array], Any],
    optimizer: optax.GradientTransformation | None = None,
) -> Made:
    """Returns the usual step: the gradient of a loss and one update. The state is (parameters,
    moments)."""
    updating = optimizer or adam()

    def step(state: Any, batch: Any) -> Any:
        params, moments = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, moments = updating.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    def init(key: jax.Array) -> tuple[Any, ...]:
        params = init_params(jax.random.fold_in(key, 0))
        return (params, updating.init(params)), draw_batch(jax.random.fold_in(key, 1))

    return step, init


def descended(
    loss: Callable[[Any, Any], jax.Array],
    init_params: Callable[[jax.Array], Any],
    draw_batch: Callable[[jax.Array], Any],
    rate: float = 1e-2,
) -> Made:
    """Returns a step of plain gradient descent, without an optimiser."""

    def step(params: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - (rate * g).astype(p.dtype), params, grads), value

    def init(key: jax.Array) -> tuple[Any, ...]:
        return init_params(jax.random.fold_in(key, 0)), draw_batch(jax.random.fold_in(key, 1))

    return step, init


def weights(key: jax.Array, dtype: Any = jnp.float32, **shapes: tuple[int, ...]) -> dict[str, Any]:
    """Returns random matrices by name, divided by the square root of the product of all but their
    last dimension. Vectors are zeros."""

    def weight(number: int, shape: tuple[int, ...]) -> jax.Array:
        if len(shape) < 2:
            return jnp.zeros(shape, dtype)
        fan_in = 1
        for size in shape[:-1]:
            fan_in *= size
        drawn = jax.random.normal(jax.random.fold_in(key, number), shape)
        return (drawn / fan_in**0.5).astype(dtype)

    return {name: weight(number, shape) for number, (name, shape) in enumerate(shapes.items())}


def normal(key: jax.Array, *shape: int, dtype: Any = jnp.float32) -> jax.Array:
    """Returns standard normal values."""
    return jax.random.normal(key, shape).astype(dtype)


def integers(key: jax.Array, below: int, *shape: int) -> jax.Array:
    """Returns random integers from 0 to `below` - 1."""
    return jax.random.randint(key, shape, 0, below)


def keys(key: jax.Array, number: int) -> list[jax.Array]:
    """Returns `number` random keys derived from one."""
    return list(jax.random.split(key, number))


def normalised(x: jax.Array) -> jax.Array:
    """Layer normalisation without parameters."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def picked(values: jax.Array, chosen: jax.Array) -> jax.Array:
    """Returns, for values [..., classes], the value of the class in `chosen` [...]."""
    return jnp.take_along_axis(values, chosen[..., None], -1)[..., 0]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the mean negative log-likelihood of the labels."""
    return -picked(jax.nn.log_softmax(logits), labels).mean()


def attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Attention over [batch, length, heads, size]."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def heads_of(x: jax.Array, weight: jax.Array, heads: int) -> jax.Array:
    """Returns a projection of `x`, split into heads: [..., heads, size]."""
    return (x @ weight).reshape(*x.shape[:-1], heads, -1)
