"""A training step by Adam. Only the update reads the moments."""

from collections.abc import Callable
from typing import Any

import jax
import optax

OPTIMIZER = optax.adam(1e-3)


def adam_step(loss: Callable[[Any, Any], jax.Array]) -> Callable[[Any, Any], Any]:
    """Returns a step from (parameters, moments) and a batch to the new (parameters, moments) and
    the loss."""

    def step(state: Any, x: Any) -> Any:
        params, moments = state
        value, gradients = jax.value_and_grad(loss)(params, x)
        updates, moments = OPTIMIZER.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    return step
