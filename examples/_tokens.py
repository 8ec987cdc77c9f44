"""Batches of tokens for the examples that use a model library."""

import jax
import jax.numpy as jnp

from examples._common import Batch


def token_batch(batch: int, sequence: int, vocabulary: int, seed: int) -> Batch:
    """Returns {"inputs", "targets", "key"}: tokens, their successors, and a key for dropout. Tokens
    are int32 [B, S]."""
    token_key, dropout_key = jax.random.split(jax.random.key(seed))
    tokens = jax.random.randint(token_key, (batch, sequence + 1), 0, vocabulary, jnp.int32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "key": dropout_key}
