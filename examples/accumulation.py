"""Gradient accumulation and clipping with Optax, around the GPT of `examples.gpt`.

The batch comes in microbatches [M, B / M, S]. A scan over the microbatches sums the gradients, so
that only the activations of one microbatch are alive at a time. The gradients are then clipped by
their norm, and AdamW takes one step.

    python -m examples.accumulation
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from examples import gpt
from examples._common import Batch, Metrics, TrainState


@dataclass(frozen=True)
class Config:
    """The model, and the training: each step takes `model.batch` sequences in `microbatches` parts,
    and clips gradients to `norm`."""

    model: gpt.GptConfig
    microbatches: int = 2
    norm: float = 1.0


SIZES = {
    "tiny": Config(gpt.GptConfig(1, 32, 4, batch=16, sequence=16, vocabulary=64)),
    "small": Config(gpt.GptConfig(2, 64, 4, batch=32, sequence=32, vocabulary=128), 4),
}


def make_state(config: Config, seed: int = 0) -> TrainState:
    """Returns parameters, the state of clipping and AdamW, and the number of steps."""
    params = gpt.init_params(config.model, jax.random.key(seed))
    return TrainState(params, _optimizer(config).init(params), jnp.zeros((), jnp.int32))


def make_batch(config: Config, seed: int = 0) -> Batch:
    """Returns the GPT's batch, cut into microbatches."""
    count = config.microbatches
    whole = gpt.make_batch(config.model, seed)
    return jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), whole)


def make_train_step(config: Config) -> Any:
    """Returns `train_step(state, batch) -> (state, {"loss", "norm"})`; "norm" is the norm before
    clipping."""

    def loss(params: Any, batch: Batch) -> jax.Array:
        return gpt.loss(config.model, None, params, batch)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        def accumulate(sums: Any, microbatch: Batch) -> tuple[Any, None]:
            loss_and_gradients = jax.value_and_grad(loss)(state.params, microbatch)
            return jax.tree.map(jnp.add, sums, loss_and_gradients), None

        zeros = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.params))
        sums, _ = jax.lax.scan(accumulate, zeros, batch)
        value, gradients = jax.tree.map(lambda x: x / config.microbatches, sums)
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in jax.tree.leaves(gradients)))
        updates, opt_state = _optimizer(config).update(gradients, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        return TrainState(params, opt_state, state.step + 1), {"loss": value, "norm": norm}

    return train_step


def _optimizer(config: Config) -> optax.GradientTransformation:
    model = config.model
    return optax.chain(
        optax.clip_by_global_norm(config.norm),
        optax.adamw(model.learning_rate, weight_decay=model.weight_decay),
    )


def make_step(
    batch_size: int, microbatches: int = 1, size: str = "tiny"
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the step and its arguments as shapes, for `kiwi.search`."""
    if batch_size % microbatches:
        raise ValueError(f"{batch_size} sequences are not {microbatches} equal microbatches")
    model = replace(SIZES[size].model, batch=batch_size)
    config = Config(model, microbatches)
    args = jax.eval_shape(lambda: (make_state(config), make_batch(config)))
    return make_train_step(config), args


if __name__ == "__main__":
    from examples._compare import main

    main("accumulation")
