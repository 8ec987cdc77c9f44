"""Normalisations, in the different ways in which people write them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks.sampled.blocks.block import Block, Params
from benchmarks.sampled.drawing import Drawing

_EPSILON = 1e-5


def layer_norm(params: Params, x: jax.Array) -> jax.Array:
    """Normalises over features, with the variance as the mean square of the centred values."""
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + _EPSILON) * params["scale"] + params["bias"]


def layer_norm_float32(params: Params, x: jax.Array) -> jax.Array:
    """Normalises over features, in float32 and with `jnp.var`."""
    wide = x.astype(jnp.float32)
    mean, variance = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
    normed = ((wide - mean) / jnp.sqrt(variance + _EPSILON)).astype(x.dtype)
    return normed * params["scale"] + params["bias"]


def rms_norm(params: Params, x: jax.Array) -> jax.Array:
    """Divides by the root mean square, in float32 as in Llama."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + _EPSILON)
    return (wide * scale).astype(x.dtype) * params["scale"]


def rms_norm_same_dtype(params: Params, x: jax.Array) -> jax.Array:
    """Divides by the root mean square, in the dtype of the input and by a dot product with
    itself."""
    squares = jnp.einsum("...d,...d->...", x, x)[..., None] / x.shape[-1]
    return x / jnp.sqrt(squares + _EPSILON) * params["scale"]


def batch_norm(params: Params, x: jax.Array) -> jax.Array:
    """Normalises over all dimensions except features, with the statistics of the batch."""
    axes = tuple(range(x.ndim - 1))
    wide = x.astype(jnp.float32)
    mean = wide.mean(axes)
    variance = jnp.square(wide).mean(axes) - jnp.square(mean)
    scale = jax.lax.rsqrt(variance + _EPSILON) * params["scale"]
    return ((wide - mean) * scale + params["bias"]).astype(x.dtype)


def group_norm(params: Params, x: jax.Array) -> jax.Array:
    """Normalises over space and half of the features."""
    batch, *space, features = x.shape
    grouped = x.reshape(batch, *space, 2, features // 2)
    axes = (*range(1, x.ndim - 1), x.ndim)
    mean = grouped.mean(axes, keepdims=True)
    variance = grouped.var(axes, keepdims=True)
    normed = (grouped - mean) * jax.lax.rsqrt(variance + _EPSILON)
    return normed.reshape(x.shape) * params["scale"] + params["bias"]


SEQUENCE_NORMS: dict[str, Callable[[Params, jax.Array], jax.Array]] = {
    "layer": layer_norm,
    "layer in float32": layer_norm_float32,
    "rms": rms_norm,
    "rms in the same dtype": rms_norm_same_dtype,
}
IMAGE_NORMS: dict[str, Callable[[Params, jax.Array], jax.Array]] = {
    "batch": batch_norm,
    "group": group_norm,
    "layer": layer_norm,
}


def norm_params(features: int) -> Params:
    """Returns the parameters of any normalisation. Normalisations without a bias do not read the
    bias."""
    return {"scale": jnp.ones(features), "bias": jnp.zeros(features)}


def draw_norm(
    draw: Drawing, norms: dict[str, Callable[[Params, jax.Array], jax.Array]]
) -> Callable[[Params, jax.Array], jax.Array]:
    """Draws one of the normalisations."""
    return norms[draw.one_of("norm", tuple(norms))]


def residual(block: Block, norm: Callable[[Params, jax.Array], jax.Array], features: int) -> Block:
    """Returns a block that normalises its input, runs `block`, and adds the input."""

    def init(key: jax.Array) -> Params:
        return {"norm": norm_params(features), "inner": block.init(key)}

    def apply(params: Params, x: jax.Array, context) -> jax.Array:
        return x + block.apply(params["inner"], norm(params["norm"], x), context)

    return Block(block.kind, init, apply)
