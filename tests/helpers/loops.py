"""Small training steps that run in loops, for tests: one for each form of `jax.lax.scan`, `while`
and `cond`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Loop:
    """A step and its arguments. `loops` is the number of loops that Kiwi opens in its program."""

    step: Callable[..., Any]
    args: tuple[Any, ...]
    loops: int


def normal(seed: int, *shape: int) -> jax.Array:
    """Returns normally distributed numbers with a standard deviation of 0.2."""
    return 0.2 * jax.random.normal(jax.random.key(seed), shape)


def descent(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Returns one step of gradient descent on the first argument, which also returns the loss."""

    def step(params: Any, *batch: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

    return step


def layers(*, checkpoint: bool = False, unroll: int = 1) -> Loop:
    """A scan over residual layers."""

    def loss(params: Any, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            return x + jnp.tanh(jnp.tanh(x @ w["up"]) @ w["down"]), None

        body = jax.checkpoint(layer) if checkpoint else layer
        x, _ = jax.lax.scan(body, x, params, unroll=unroll)
        return jnp.mean(x * x)

    params = {"up": normal(0, 4, 32, 128), "down": normal(1, 4, 128, 32)}
    return Loop(descent(loss), (params, normal(2, 256, 32)), 2)


def nested() -> Loop:
    """A scan in a scan. The outer scan stacks a result that is read after it."""

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
    """Two scans over time with shared weights, one forwards and one backwards."""

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
    """A scan over microbatches that sums the gradients of a scanned model with dropout."""

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
    """A scan over several training steps, whose carry is the parameters."""

    def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x * x)

    def step(params: list[jax.Array], xs: jax.Array) -> Any:
        return jax.lax.scan(lambda p, x: descent(loss)(p, x), params, xs)

    return Loop(step, ([normal(0, 64, 64), normal(1, 64, 64)], normal(2, 3, 256, 64)), 1)


def _dense(x: jax.Array, w: Any) -> jax.Array:
    return x + jnp.tanh(jnp.tanh(x @ w["up"]) @ w["down"])


def _stack(length: int) -> Any:
    return {"up": normal(0, length, 32, 128), "down": normal(1, length, 128, 32)}


def repeated() -> Loop:
    """A `while` over layers, with a counter of layers in its carry."""

    def step(params: Any, x: jax.Array) -> jax.Array:
        def layer(state: Any) -> Any:
            k, x = state
            return k + 1, _dense(x, jax.tree.map(lambda w: w[k], params))

        return jax.lax.while_loop(lambda state: state[0] < 4, layer, (0, x))[1]

    return Loop(step, (_stack(4), normal(2, 512, 32)), 1)


def converging() -> Loop:
    """A `while` in a scan, which ends when its value is small."""

    def step(params: Any, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: Any) -> tuple[jax.Array, jax.Array]:
            y = jax.lax.while_loop(lambda y: jnp.sum(y * y) > 1.0, lambda y: 0.05 * _dense(y, w), x)
            return x + y, jnp.mean(y)

        return jax.lax.scan(layer, x, params)

    return Loop(step, (_stack(3), normal(2, 512, 32)), 2)


def branching() -> Loop:
    """A differentiated `cond` with two branches, of which the first one runs."""

    def loss(params: Any, x: jax.Array, sign: jax.Array) -> jax.Array:
        def deep(x: jax.Array) -> jax.Array:
            for k in range(4):
                x = _dense(x, jax.tree.map(lambda w, k=k: w[k], params))
            return x

        def shallow(x: jax.Array) -> jax.Array:
            return jnp.sin(x @ params["up"][0]) @ params["down"][0]

        return jnp.mean(jax.lax.cond(sign > 0, deep, shallow, x) ** 2)

    return Loop(descent(loss), (_stack(4), normal(2, 512, 32), jnp.ones(())), 6)


def bounded() -> Loop:
    """A differentiated loop of at most four iterations: a scan of `cond`s."""

    def loss(params: Any, x: jax.Array, count: jax.Array) -> jax.Array:
        def layer(x: jax.Array, row: Any) -> tuple[jax.Array, None]:
            k, w = row
            return jax.lax.cond(k < count, lambda x: _dense(x, w), lambda x: x, x), None

        return jnp.mean(jax.lax.scan(layer, x, (jnp.arange(4), params))[0] ** 2)

    return Loop(descent(loss), (_stack(4), normal(2, 512, 32), jnp.int32(3)), 8)


CHOICES: dict[str, Callable[[], Loop]] = {
    "while over layers": repeated,
    "while in a scan": converging,
    "cond of two branches": branching,
    "bounded while": bounded,
}
"""The loops whose number of iterations, or choice of branch, depends on a value; by name."""

LOOPS: dict[str, Callable[[], Loop]] = {
    "layers": layers,
    "layers, checkpointed": lambda: layers(checkpoint=True),
    "layers, unrolled by two": lambda: layers(unroll=2),
    "nested": nested,
    "recurrent": recurrent,
    "accumulated": accumulated,
    "trained": trained,
}
"""The loops with a fixed number of iterations, by name."""
