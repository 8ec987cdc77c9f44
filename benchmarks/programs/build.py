"""Builds a function of arrays and its arguments from a recipe."""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.programs.operations import OPERATIONS
from benchmarks.programs.recipes import Recipe
from benchmarks.programs.regions import REGIONS
from benchmarks.programs.steps import Array, Context, Digits, Inputs, Step, fit

TOKENS = 6
LEARNING_RATE = 0.05


def program(recipe: Recipe) -> Callable[..., Any]:
    """Returns the function of a recipe. Its arguments are those of `arguments`."""
    if recipe.mode == "forward":
        return lambda params, x, inputs: _values(recipe, params, x, inputs)[1]
    if recipe.mode == "gradient":
        return lambda params, x, inputs: jax.value_and_grad(
            lambda params: _loss(recipe, params, x, inputs), allow_int=True
        )(params)
    return lambda params, x, inputs: _train_step(recipe, params, x, inputs)


def arguments(recipe: Recipe) -> tuple[dict[str, Array], Array, Inputs]:
    """Returns parameters, input and integers. Equal recipes have equal arguments."""
    rng = np.random.default_rng(zlib.crc32(repr(recipe.steps).encode()))
    x = jnp.asarray(rng.standard_normal(recipe.shape), recipe.dtype)
    key = jax.random.PRNGKey(7) if recipe.raw_key else jax.random.key(7)
    inputs = Inputs(jnp.asarray(rng.integers(0, 12, TOKENS), jnp.int32), key)
    recorder = Context(inputs)
    jax.eval_shape(lambda x: _run(recipe.steps, x, recorder, "p"), x)
    params = {"scale": jnp.ones(())}
    for name, shape in recorder.shapes.items():
        fan_in = shape.shape[-2] if len(shape.shape) > 1 else 4
        values = rng.standard_normal(shape.shape) / np.sqrt(max(1, fan_in))
        params[name] = jnp.asarray(values, shape.dtype)
    return params, x, inputs


def _train_step(recipe: Recipe, params: Any, x: Array, inputs: Inputs) -> Any:
    value, gradients = jax.value_and_grad(lambda p: _loss(recipe, p, x, inputs))(params)
    updated = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradients)
    return updated, {"loss": value}


def _loss(recipe: Recipe, params: Any, x: Array, inputs: Inputs) -> Array:
    return _values(recipe, params, x, inputs)[0]


def _values(recipe: Recipe, params: Any, x: Array, inputs: Inputs) -> tuple[Array, Any]:
    """Returns the loss and the last value."""
    last = _run(recipe.steps, x * params["scale"].astype(x.dtype), Context(inputs, params), "p")
    return jnp.mean(jnp.sin(last.astype(jnp.float32)) ** 2), {"last": last, "tokens": inputs.tokens}


def _run(steps: Sequence[Step], x: Array, context: Context, name: str) -> Array:
    """Runs the steps, each on the latest value, with an earlier value as second operand. Returns
    the last value."""
    values = [x]
    for k, step in enumerate(steps):
        digits, path = Digits(step.choice), f"{name}/{k}"
        current = values[-1]
        if step.name in REGIONS:
            body = _body(step.body, path)
            values.append(REGIONS[step.name](current, body, context, digits, path))
        else:
            other = values[digits.take(len(values))]
            values.append(OPERATIONS[step.name](current, other, context, digits, path))
        values[-1] = values[-1].astype(x.dtype)
    return values[-1]


def _body(steps: tuple[Step, ...], path: str) -> Callable[[Array, Context], Array]:
    return lambda x, context: fit(_run(steps, x, context, path), x)


jax.tree_util.register_dataclass(Inputs, ["tokens", "key"], [])
