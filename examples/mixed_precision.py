"""Mixed precision: weights, activations and gradients in bfloat16, masters in float32.

The model reads bfloat16 weights. The optimizer keeps a float32 copy of each weight, the master, and
updates the master, because bfloat16 would round a small update away (Micikevicius et al. 2018,
section 3.1). bfloat16 has the range of float32, so the loss needs no scaling.

    python -m examples.mixed_precision
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from examples import gpt
from examples._common import Batch, Metrics, TrainState


@dataclass(frozen=True)
class Config:
    """The model. Its activations are bfloat16."""

    model: gpt.GptConfig


SIZES = {
    "tiny": Config(gpt.GptConfig(1, 32, 4, batch=8, sequence=16, vocabulary=64, dtype="bfloat16")),
    "small": Config(
        gpt.GptConfig(3, 64, 4, batch=16, sequence=32, vocabulary=128, dtype="bfloat16")
    ),
}


class MasterState(NamedTuple):
    """The float32 parameters, and the optimizer's state for them."""

    masters: Any
    inner: optax.OptState


def with_masters(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns `inner`, run on float32 copies of parameters of any precision.

    Its updates are the differences between the rounded new masters and the old parameters.
    """

    def init(params: Any) -> MasterState:
        masters = _cast(params, jnp.float32)
        return MasterState(masters, inner.init(masters))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, MasterState]:
        wide = _cast(updates, jnp.float32)
        steps, following = inner.update(wide, state.inner, state.masters)
        masters = optax.apply_updates(state.masters, steps)
        rounded = jax.tree.map(lambda m, p: m.astype(p.dtype) - p, masters, params)
        return rounded, MasterState(masters, following)

    return optax.GradientTransformation(init, update)


def make_state(config: Config, seed: int = 0) -> TrainState:
    """Returns bfloat16 parameters, their masters, and the number of steps."""
    params = _cast(gpt.init_params(config.model, jax.random.key(seed)), jnp.bfloat16)
    return TrainState(params, _optimizer(config).init(params), jnp.zeros((), jnp.int32))


def make_batch(config: Config, seed: int = 0) -> Batch:
    """Returns the GPT's batch."""
    return gpt.make_batch(config.model, seed)


def make_train_step(config: Config) -> Any:
    """Returns `train_step(state, batch) -> (state, {"loss"})`."""

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        loss = lambda params: gpt.loss(config.model, None, params, batch)  # noqa: E731
        value, gradients = jax.value_and_grad(loss)(state.params)
        updates, opt_state = _optimizer(config).update(gradients, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, state.step + 1), {"loss": value}

    return train_step


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype), tree)


def _optimizer(config: Config) -> optax.GradientTransformation:
    return with_masters(optax.adamw(config.model.learning_rate))


if __name__ == "__main__":
    from examples._compare import main

    main("mixed_precision")
