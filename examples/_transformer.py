"""Transformer layers for all examples that have some, and Megatron's shardings of them.

Shapes are written with B (batch), S (sequence), D (width), H (heads), K (D / H), M (mlp_ratio D).
There is no dropout. Parameters are float32. Activations have the dtype of the configuration, but
layer normalisation, the attention's softmax and losses are computed in float32.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from examples._common import (
    AxisNames,
    Batch,
    Params,
    Remat,
    Specs,
    TrainState,
    apply_remat,
    init_kernel,
    specs_by_name,
)


@dataclass(frozen=True)
class TransformerConfig:
    """Size and training of a transformer.

    `vocabulary=0` leaves out the embedding and the head. The model is then the stack of layers
    alone, as one stage of a pipeline sees it: inputs and targets are activations [B, S, D], and the
    loss is the mean squared error of the final hidden state.

    **Raises:** `ValueError` if `heads` does not divide `width`.
    """

    layers: int
    width: int
    heads: int
    batch: int
    sequence: int
    vocabulary: int = 0
    mlp_ratio: int = 4
    dtype: str = "float32"
    learning_rate: float = 3e-4
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads


def adamw(config: TransformerConfig) -> optax.GradientTransformation:
    """Returns AdamW with the constants of GPT-3's training."""
    return optax.adamw(config.learning_rate, b1=0.9, b2=0.95, weight_decay=config.weight_decay)


def init_blocks(config: TransformerConfig, key: jax.Array) -> list[Params]:
    """Returns the parameters of the layers, first to last."""
    return [_init_block(config, block_key) for block_key in jax.random.split(key, config.layers)]


def init_layer_norm(width: int) -> Params:
    """Returns a scale of ones and a bias of zeros."""
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def init_embedding(config: TransformerConfig, key: jax.Array) -> Params:
    """Returns token and learned position embeddings, [vocabulary, D] and [S, D]."""
    token_key, position_key = jax.random.split(key)
    return {
        "token": 0.02 * jax.random.normal(token_key, (config.vocabulary, config.width)),
        "position": 0.02 * jax.random.normal(position_key, (config.sequence, config.width)),
    }


def embed(embedding: Params, tokens: jax.Array, dtype: str) -> jax.Array:
    """Embeds tokens [B, S], int32, as activations [B, S, D]."""
    return (embedding["token"][tokens] + embedding["position"]).astype(dtype)


def apply_blocks(
    blocks: list[Params],
    x: jax.Array,
    *,
    causal: bool,
    pre_norm: bool,
    remat: Remat,
) -> jax.Array:
    """Runs the layers, unrolled; [B, S, D] → [B, S, D].

    - `causal`: a position attends only to itself and earlier positions.
    - `pre_norm`: normalise the input of each sublayer. Otherwise the sum of the sublayer's output
      and the residual stream is normalised.
    """

    block = apply_remat(functools.partial(_block, causal=causal, pre_norm=pre_norm), remat)
    for params in blocks:
        x = block(params, x)
    return x


def layer_norm(params: Params, x: jax.Array) -> jax.Array:
    """Normalises the last dimension to mean 0 and variance 1, then scales and shifts."""
    y = x.astype(jnp.float32)
    mean = jnp.mean(y, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(y - mean), axis=-1, keepdims=True)
    y = (y - mean) * jax.lax.rsqrt(variance + 1e-5)
    return (y * params["scale"] + params["bias"]).astype(x.dtype)


def make_activation_batch(config: TransformerConfig, key: jax.Array) -> Batch:
    """Returns normally distributed activations and targets, [B, S, D], for `vocabulary=0`."""
    input_key, target_key = jax.random.split(key)
    shape = (config.batch, config.sequence, config.width)
    return {
        "inputs": jax.random.normal(input_key, shape, config.dtype),
        "targets": jax.random.normal(target_key, shape, config.dtype),
    }


def megatron_specs(state: TrainState, data_axis: AxisNames | None, model_axis: AxisNames) -> Specs:
    """Tensor parallelism within each layer (Shoeybi et al. 2019, §3) times data parallelism.

    Along `model_axis` attention is split by heads and the feed-forward network by hidden units.
    Each of the two then needs one all-reduce per layer in the forward pass and one in the backward
    pass. The token embedding (and the tied head) is split by vocabulary. All other arrays are
    replicated along `model_axis`, and the whole state is replicated along `data_axis`, which slices
    the batch. The optimizer's moments are sharded like their parameters.

    `model_axis` must divide heads, hidden units and vocabulary.
    """
    return specs_by_name(state, megatron_by_name(model_axis), data_axis)


def megatron_by_name(model_axis: AxisNames) -> dict[tuple[str, ...], PartitionSpec]:
    """Returns the shardings of `megatron_specs` by name, for `examples._common.specs_by_name`."""
    column, row = PartitionSpec(None, model_axis), PartitionSpec(model_axis)
    return {
        ("query", "kernel"): column,  # [D, H, K]
        ("query", "bias"): row,  # [H, K]
        ("key", "kernel"): column,
        ("key", "bias"): row,
        ("value", "kernel"): column,
        ("value", "bias"): row,
        ("output", "kernel"): row,  # [H, K, D]
        ("up", "kernel"): column,  # [D, M]
        ("up", "bias"): row,  # [M]
        ("down", "kernel"): row,  # [M, D]
        ("embedding", "token"): row,  # [vocabulary, D]
    }


def init_attention(config: TransformerConfig, keys: jax.Array) -> Params:
    """Returns {"query", "key", "value", "output"}, each {"kernel", "bias"}. `keys`: four random
    keys."""
    width, heads, head_width = config.width, config.heads, config.head_width
    query, key, value, output = keys
    inward, inward_bias = (width, heads, head_width), (heads, head_width)
    return {
        "query": _dense(query, width, inward, inward_bias),
        "key": _dense(key, width, inward, inward_bias),
        "value": _dense(value, width, inward, inward_bias),
        "output": _dense(output, width * _damping(config), (heads, head_width, width), (width,)),
    }


def init_feed_forward(config: TransformerConfig, keys: jax.Array) -> Params:
    """Returns {"up", "down"}, each {"kernel", "bias"}. `keys`: two random keys."""
    width, hidden = config.width, config.mlp_ratio * config.width
    up, down = keys
    return {
        "up": _dense(up, width, (width, hidden), (hidden,)),
        "down": _dense(down, hidden * _damping(config), (hidden, width), (width,)),
    }


def _dense(key: jax.Array, fan_in: int, kernel: tuple[int, ...], bias: tuple[int, ...]) -> Params:
    return {"kernel": init_kernel(key, kernel, fan_in), "bias": jnp.zeros(bias)}


def _damping(config: TransformerConfig) -> int:
    """Returns the factor by which the projections back into the residual stream start with a
    smaller variance. With it the variance of the stream does not grow with depth (Radford et al.
    2019)."""
    return 2 * config.layers


def _init_block(config: TransformerConfig, key: jax.Array) -> Params:
    keys = jax.random.split(key, 6)
    return {
        "attention_norm": init_layer_norm(config.width),
        "attention": init_attention(config, keys[:4]),
        "mlp_norm": init_layer_norm(config.width),
        "mlp": init_feed_forward(config, keys[4:]),
    }


def _block(params: Params, x: jax.Array, *, causal: bool, pre_norm: bool) -> jax.Array:
    if pre_norm:
        y = layer_norm(params["attention_norm"], x)
        x = x + attention(params["attention"], y, y, causal=causal)
        return x + feed_forward(params["mlp"], layer_norm(params["mlp_norm"], x))
    mixed = attention(params["attention"], x, x, causal=causal)
    x = layer_norm(params["attention_norm"], x + mixed)
    return layer_norm(params["mlp_norm"], x + feed_forward(params["mlp"], x))


def attention(params: Params, x: jax.Array, context: jax.Array, *, causal: bool) -> jax.Array:
    """Each position of `x` [B, S, D] attends to the positions of `context` [B, S', D]. Returns [B,
    S, D].

    `causal`: a position attends only to itself and earlier positions, which needs S = S'.
    """
    query = _project("bsd,dhk->bshk", params["query"], x)
    key = _project("bsd,dhk->bshk", params["key"], context)
    value = _project("bsd,dhk->bshk", params["value"], context)
    scores = jnp.einsum("bqhk,bshk->bhqs", query, key).astype(jnp.float32)
    scores = scores * query.shape[-1] ** -0.5
    if causal:
        length = x.shape[1]
        scores = jnp.where(jnp.tri(length, dtype=bool), scores, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhqs,bshk->bqhk", weights, value)
    return _project("bshk,hkd->bsd", params["output"], mixed)


def feed_forward(params: Params, x: jax.Array) -> jax.Array:
    """A network with one hidden layer and gelu; [B, S, D] → [B, S, D]."""
    hidden = jax.nn.gelu(_project("bsd,dm->bsm", params["up"], x))
    return _project("bsm,md->bsd", params["down"], hidden)


def _project(equation: str, params: Params, x: jax.Array) -> jax.Array:
    kernel, bias = params["kernel"].astype(x.dtype), params["bias"].astype(x.dtype)
    return jnp.einsum(equation, x, kernel) + bias
