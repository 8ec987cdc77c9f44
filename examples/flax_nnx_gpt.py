"""A GPT written with Flax NNX, with dropout, trained by an `nnx.Optimizer`.

The step has NNX's functional form. `nnx.split` separates model and optimizer into a static graph
and a pytree of arrays, which is planned. Inside the step `nnx.merge` puts the two together.

    python -m examples.flax_nnx_gpt
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

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
    "tiny": Config(layers=1, width=32, heads=4, batch=8, sequence=16, vocabulary=64),
    "small": Config(layers=3, width=64, heads=4, batch=16, sequence=32, vocabulary=128),
}


class Block(nnx.Module):
    """A decoder layer [B, S, D] that normalises its inputs."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.attention_norm = nnx.LayerNorm(config.width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(config.heads, config.width, decode=False, rngs=rngs)
        self.mlp_norm = nnx.LayerNorm(config.width, rngs=rngs)
        self.up = nnx.Linear(config.width, 4 * config.width, rngs=rngs)
        self.down = nnx.Linear(4 * config.width, config.width, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout)

    def __call__(self, x: jax.Array, rngs: nnx.Rngs) -> jax.Array:
        """Returns the layer's result, of the shape of `x`."""
        seen = nnx.make_causal_mask(x[..., 0])
        x = x + self.dropout(self.attention(self.attention_norm(x), mask=seen), rngs=rngs)
        return x + self.dropout(self.down(jax.nn.gelu(self.up(self.mlp_norm(x)))), rngs=rngs)


class Gpt(nnx.Module):
    """Maps tokens [B, S] to logits [B, S, V]. The head is tied to the embedding."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(config.vocabulary, config.width, rngs=rngs)
        self.position = nnx.Param(jnp.zeros((config.sequence, config.width)))
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.norm = nnx.LayerNorm(config.width, rngs=rngs)

    def __call__(self, tokens: jax.Array, rngs: nnx.Rngs) -> jax.Array:
        """Returns the logits of each next token."""
        x = self.embedding(tokens) + self.position[...]
        for block in self.blocks:
            x = block(x, rngs)
        return self.embedding.attend(self.norm(x))


def _objects(config: Config, seed: int) -> tuple[Gpt, nnx.Optimizer]:
    model = Gpt(config, nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.adamw(config.learning_rate), wrt=nnx.Param)


def make_state(config: Config, seed: int = 0) -> Any:
    """Returns the arrays of model and optimizer before the first step."""
    return nnx.state(_objects(config, seed))


def make_batch(config: Config, seed: int = 0) -> Batch:
    """Returns random tokens, their successors, and the key of the dropout masks."""
    return token_batch(config.batch, config.sequence, config.vocabulary, seed)


def make_train_step(config: Config) -> Any:
    """Returns `train_step(state, batch) -> (state, {"loss"})`."""
    graph = nnx.graphdef(nnx.eval_shape(lambda: _objects(config, 0)))

    def train_step(state: Any, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        model, optimizer = nnx.merge(graph, state)

        def loss(model: Gpt) -> jax.Array:
            key = jax.random.fold_in(batch["key"], optimizer.step[...])
            logits = model(batch["inputs"], nnx.Rngs(dropout=key))
            return cross_entropy(logits, batch["targets"])

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return nnx.state((model, optimizer)), {"loss": value}

    return train_step


if __name__ == "__main__":
    from examples._compare import main

    main("flax_nnx_gpt")
