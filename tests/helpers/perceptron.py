"""A training step with equal layers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tests.helpers.planning import array


def step_of(
    layers: int, width: int, activation: str
) -> tuple[Callable[..., Any], list[jax.ShapeDtypeStruct]]:
    """Returns a step of (weights, inputs), and the shapes of its weights."""
    act = {"tanh": jnp.tanh, "gelu": jax.nn.gelu, "relu": jax.nn.relu}[activation]

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = act(x @ w)
        return jnp.mean(x**2)

    def step(weights: Any, x: Any) -> Any:
        gradients = jax.grad(loss)(weights, x)
        return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]

    return step, [array(width, width)] * layers
