"""Training steps that run in loops, for tests: small, and of every shape of `jax.lax.scan`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Loop:
    """A step and its arguments; `loops` is how many loops its program opens."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    loops: int


def normal(seed: int, *shape: int) -> jax.Array:
    """Small random numbers."""
    return 0.2 * jax.random.normal(jax.random.key(seed), shape)


def descent(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """One step of gradient descent on the first argument."""

    def step(params: Any, *batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

    return step


def layers(*, checkpoint: bool = False, unroll: int = 1) -> Loop:
    """A stack of residual layers."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            return x + jnp.tanh(jnp.tanh(x @ w["up"]) @ w["down"]), None

        body = jax.checkpoint(layer) if checkpoint else layer
        x, _ = jax.lax.scan(body, x, params, unroll=unroll)
        return jnp.mean(x * x)

    params = {"up": normal(0, 4, 32, 128), "down": normal(1, 4, 128, 32)}
    return Loop(descent(loss), (params, normal(2, 256, 32)), 2)


def nested() -> Loop:
    """A scan in a scan, with something stacked and read after it."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        def inner(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return x + jnp.tanh(x @ w), None

        def outer(x: jax.Array, w: Any) -> tuple[jax.Array, jax.Array]:
            x, _ = jax.lax.scan(inner, x, w["inner"])
            return jnp.tanh(x @ w["outer"]), x.sum()

        x, sums = jax.lax.scan(outer, x, params)
        return jnp.mean(x * x) + 1e-3 * jnp.mean(sums)

    params = {"inner": normal(0, 2, 3, 32, 32), "outer": normal(1, 2, 32, 32)}
    return Loop(descent(loss), (params, normal(2, 256, 32)), 4)


def recurrent() -> Loop:
    """Shared weights, forwards and backwards in time."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(h @ params["w"] + x @ params["u"] + params["b"])
            return h, h

        start = jnp.zeros((x.shape[1], 32))
        _, there = jax.lax.scan(cell, start, x)
        _, back = jax.lax.scan(cell, start, x, reverse=True)
        return jnp.mean((there + back) ** 2)

    params = {"w": normal(0, 32, 32), "u": normal(1, 32, 32), "b": jnp.zeros(32)}
    return Loop(descent(loss), (params, normal(2, 8, 64, 32)), 4)


def accumulated() -> Loop:
    """Gradients summed over microbatches, of a scanned model with dropout."""

    def loss(w: jax.Array, x: jax.Array, key: jax.Array) -> jax.Array:
        def layer(x: jax.Array, both: Any) -> tuple[jax.Array, None]:
            w, key = both
            kept = jax.random.bernoulli(key, 0.8, x.shape)
            return x + jnp.where(kept, jnp.tanh(x @ w), 0.0), None

        x, _ = jax.lax.scan(layer, x, (w, jax.random.split(key, w.shape[0])))
        return jnp.mean(x * x)

    def step(w: jax.Array, xs: jax.Array, key: jax.Array) -> Any:
        def micro(total: Any, both: Any) -> tuple[Any, None]:
            x, key = both
            value, gradient = jax.value_and_grad(loss)(w, x, key)
            return (total[0] + value, total[1] + gradient), None

        keys = jax.random.split(key, xs.shape[0])
        (value, gradient), _ = jax.lax.scan(micro, (0.0, jnp.zeros_like(w)), (xs, keys))
        return w - 0.1 * gradient, value

    return Loop(step, (normal(0, 4, 32, 32), normal(1, 3, 256, 32), jax.random.key(3)), 3)


def trained() -> Loop:
    """Several steps of training in one loop: parameters are what it carries."""

    def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x * x)

    def step(params: list[jax.Array], xs: jax.Array) -> Any:
        return jax.lax.scan(lambda p, x: descent(loss)(p, x), params, xs)

    return Loop(step, ([normal(0, 64, 64), normal(1, 64, 64)], normal(2, 3, 256, 64)), 1)


LOOPS: dict[str, Callable[[], Loop]] = {
    "layers": layers,
    "layers, checkpointed": lambda: layers(checkpoint=True),
    "layers, unrolled by two": lambda: layers(unroll=2),
    "nested": nested,
    "recurrent": recurrent,
    "accumulated": accumulated,
    "trained": trained,
}
"""By name."""
