"""A decoder-only transformer written with Haiku, with dropout, trained with Optax.

`hk.transform` turns a function with modules in it into two functions. Parameters are a dictionary
of dictionaries. The layers are in a Python loop, as in Haiku's own example.
"""

from dataclasses import dataclass
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from examples._common import Batch, cross_entropy
from examples._tokens import token_batch


@dataclass(frozen=True)
class Config:
    """Size and training."""

    layers: int
    width: int
    heads: int
    batch: int
    sequence: int
    vocabulary: int
    dropout: float = 0.1
    learning_rate: float = 3e-4


SIZES = {
    "tiny": Config(layers=1, width=32, heads=4, batch=8, sequence=16, vocabulary=64),
    "small": Config(layers=3, width=128, heads=4, batch=16, sequence=64, vocabulary=512),
    "full": Config(layers=24, width=1024, heads=16, batch=16, sequence=1024, vocabulary=50304),
}


def _norm(x: jax.Array) -> jax.Array:
    return hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)(x)


def _layer(config: Config, x: jax.Array, mask: jax.Array) -> jax.Array:
    init = hk.initializers.VarianceScaling(2 / config.layers)
    size = config.width // config.heads
    attention = hk.MultiHeadAttention(config.heads, size, w_init=init, model_size=config.width)
    y = _norm(x)
    x = x + hk.dropout(hk.next_rng_key(), config.dropout, attention(y, y, y, mask=mask))
    y = jax.nn.gelu(hk.Linear(4 * config.width, w_init=init)(_norm(x)))
    y = hk.Linear(config.width, w_init=init)(y)
    return x + hk.dropout(hk.next_rng_key(), config.dropout, y)


def _model(config: Config) -> hk.Transformed:
    """Returns the model, which maps tokens [B, S] to logits [B, S, V]."""

    def forward(tokens: jax.Array) -> jax.Array:
        length = tokens.shape[1]
        init = hk.initializers.TruncatedNormal(0.02)
        positions = hk.get_parameter("positions", [length, config.width], init=init)
        x = hk.Embed(config.vocabulary, config.width, w_init=init)(tokens) + positions
        mask = jnp.tril(jnp.ones((1, 1, length, length)))
        for _ in range(config.layers):
            x = _layer(config, x, mask)
        return hk.Linear(config.vocabulary)(_norm(x))

    return hk.transform(forward)


def make_state(config: Config, seed: int = 0) -> Any:
    """Returns the parameters and the optimizer's state before the first step."""
    tokens = jnp.zeros((1, config.sequence), jnp.int32)
    params = _model(config).init(jax.random.key(seed), tokens)
    return params, optax.adamw(config.learning_rate).init(params)


def make_batch(config: Config, seed: int = 0) -> Batch:
    """Returns random tokens, their successors, and a key for dropout."""
    return token_batch(config.batch, config.sequence, config.vocabulary, seed)


def make_train_step(config: Config) -> Any:
    """Returns `train_step(state, batch) -> (state, {"loss"})`."""
    model, optimizer = _model(config), optax.adamw(config.learning_rate)

    def loss(params: Any, batch: Batch) -> jax.Array:
        return cross_entropy(model.apply(params, batch["key"], batch["inputs"]), batch["targets"])

    def train_step(state: Any, batch: Batch) -> tuple[Any, dict[str, jax.Array]]:
        params, opt_state = state
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), {"loss": value}

    return train_step
