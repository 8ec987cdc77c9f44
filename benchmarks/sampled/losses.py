"""Losses of classifiers over a vocabulary, and of pairs."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from benchmarks.sampled.drawing import Drawing

TokenLoss = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""A function from features (batch, length, width), the kernel (width, vocabulary) and labels to a
scalar."""


def draw_token_loss(draw: Drawing) -> TokenLoss:
    """Draws a cross-entropy: in one piece, label-smoothed, with a penalty on the normaliser, or in
    chunks of the sequence under `jax.checkpoint`."""
    kind = draw.one_of("loss", ("optax", "one-hot", "smoothed", "z-loss", "chunked"))
    return functools.partial(_token_loss, kind)


def _token_loss(kind: str, x: jax.Array, weights: jax.Array, labels: jax.Array) -> jax.Array:
    if kind == "chunked":
        return _chunked(x, weights, labels)
    logits = (x @ weights).astype(jnp.float32)
    return cross_entropy(kind, logits, labels)


def cross_entropy(kind: str, logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy of float32 logits."""
    classes = logits.shape[-1]
    if kind == "one-hot":
        wanted = jax.nn.one_hot(labels, classes)
        return -(wanted * jax.nn.log_softmax(logits)).sum(-1).mean()
    if kind == "smoothed":
        wanted = optax.smooth_labels(jax.nn.one_hot(labels, classes), 0.1)
        return optax.softmax_cross_entropy(logits, wanted).mean()
    if kind == "z-loss":
        normaliser = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return (normaliser - chosen + 1e-4 * jnp.square(normaliser)).mean()
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _chunked(x: jax.Array, weights: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the cross-entropy over chunks of positions, whose logits are recomputed for the
    gradient."""
    length = x.shape[1]
    chunks = next(c for c in (8, 7, 5, 4, 3, 2, 1) if length % c == 0)

    def parted(t: jax.Array) -> jax.Array:
        return t.reshape(t.shape[0], chunks, length // chunks, *t.shape[2:]).swapaxes(0, 1)

    @jax.checkpoint
    def one(total: jax.Array, now: tuple[jax.Array, jax.Array]):
        logits = (now[0] @ weights).astype(jnp.float32)
        return total + cross_entropy("optax", logits, now[1]), None

    total, _ = jax.lax.scan(one, jnp.zeros((), jnp.float32), (parted(x), parted(labels)))
    return total / chunks


def contrastive(left: jax.Array, right: jax.Array, scale: jax.Array) -> jax.Array:
    """Returns the loss of each row of one side against all rows of the other, in both directions,
    as in CLIP."""

    def unit(t: jax.Array) -> jax.Array:
        t = t.astype(jnp.float32)
        return t / jnp.linalg.norm(t, axis=-1, keepdims=True)

    logits = unit(left) @ unit(right).T * jnp.exp(scale)
    numbers = jnp.arange(left.shape[0])
    return (cross_entropy("optax", logits, numbers) + cross_entropy("optax", logits.T, numbers)) / 2
