"""A GPT written with Flax Linen: layers by `nn.scan`, dropout, and Flax's `TrainState`.

The parameters of all layers are stacked, and `nn.scan` runs one layer over them. The traced program
therefore holds one layer, whatever their number.

    python -m examples.flax_linen_gpt
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

from examples._common import Batch, cross_entropy
from examples._tokens import token_batch


@dataclass(frozen=True)
class Config:
    """Size and training of the model."""

    layers: int
    width: int
    heads: int
    batch: int
    sequence: int
    vocabulary: int
    dropout: float = 0.1
    learning_rate: float = 3e-3


SIZES = {
    "tiny": Config(layers=2, width=32, heads=4, batch=8, sequence=16, vocabulary=64),
    "small": Config(layers=3, width=64, heads=4, batch=16, sequence=32, vocabulary=128),
}


class Block(nn.Module):
    """A decoder layer [B, S, D] that normalises its inputs, in the form of a scan's body."""

    config: Config

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        """Returns the next layer's input, and None as there is nothing to stack."""
        config = self.config
        drop = nn.Dropout(config.dropout, deterministic=False)
        seen = nn.make_causal_mask(x[..., 0])
        y = nn.LayerNorm(name="attention_norm")(x)
        x = x + drop(nn.MultiHeadDotProductAttention(config.heads, name="attention")(y, mask=seen))
        y = nn.LayerNorm(name="mlp_norm")(x)
        y = nn.gelu(nn.Dense(4 * config.width, name="up")(y))
        return x + drop(nn.Dense(config.width, name="down")(y)), None


class Gpt(nn.Module):
    """Maps tokens [B, S] to logits [B, S, V]. The head is tied to the embedding."""

    config: Config

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns the logits of each next token."""
        config = self.config
        embedding = nn.Embed(config.vocabulary, config.width, name="embedding")
        zeros = nn.initializers.zeros_init()
        position = self.param("position", zeros, (config.sequence, config.width), jnp.float32)
        blocks = nn.scan(
            Block,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            length=config.layers,
        )(config, name="blocks")
        x, _ = blocks(embedding(tokens) + position, None)
        return embedding.attend(nn.LayerNorm(name="norm")(x))


def make_state(config: Config, seed: int = 0) -> TrainState:
    """Returns Flax's training state before the first step."""
    model = Gpt(config)
    tokens = jnp.zeros((config.batch, config.sequence), jnp.int32)
    params_key, dropout_key = jax.random.split(jax.random.key(seed))
    variables = model.init({"params": params_key, "dropout": dropout_key}, tokens)
    return TrainState.create(
        apply_fn=_apply(config), params=variables["params"], tx=_optimizer(config)
    )


def make_batch(config: Config, seed: int = 0) -> Batch:
    """Returns random tokens, their successors, and the key of the dropout masks."""
    return token_batch(config.batch, config.sequence, config.vocabulary, seed)


def make_train_step(config: Config) -> Any:
    """Returns `train_step(state, batch) -> (state, {"loss"})`."""

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(batch["key"], state.step)

        def loss(params: Any) -> jax.Array:
            logits = state.apply_fn({"params": params}, batch["inputs"], rngs={"dropout": key})
            return cross_entropy(logits, batch["targets"])

        value, gradients = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), {"loss": value}

    return train_step


@functools.cache
def _apply(config: Config) -> Any:
    """Returns the model's `apply`, the same object for equal configurations: Flax states compare
    equal only if their functions are the same object."""
    return Gpt(config).apply


@functools.cache
def _optimizer(config: Config) -> optax.GradientTransformation:
    return optax.adamw(config.learning_rate)


if __name__ == "__main__":
    from examples._compare import main

    main("flax_linen_gpt")
