"""Attention with different sharing of keys, masks, positions, softmaxes and orders of
dimensions."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from benchmarks.sampled.blocks.block import Block, Context, Params, dropout, kernel, keys
from benchmarks.sampled.drawing import Drawing
from benchmarks.sampled.sizes import Sizes


@dataclass(frozen=True)
class _Attention:
    """The choices of one attention. `key_heads` divides `heads`."""

    width: int
    heads: int
    key_heads: int
    head_width: int
    is_cross: bool
    mask: str
    mask_form: str
    window: int
    positions: str
    softmax: str
    wide_scores: bool
    order: str
    norms_heads: bool
    biases: bool
    dropout: float


def draw_attention(draw: Drawing, sizes: Sizes) -> Block:
    """Draws self-attention."""
    return _block(_drawn(draw, sizes, is_cross=False))


def draw_cross_attention(draw: Drawing, sizes: Sizes) -> Block:
    """Draws attention to `Context.memory`."""
    return _block(_drawn(draw, sizes, is_cross=True))


def _drawn(draw: Drawing, sizes: Sizes, *, is_cross: bool) -> _Attention:
    head_width = draw.one_of("head width", sizes.scale.head_widths)
    heads = max(2, sizes.width // head_width)
    shared = draw.one_of("key heads", ("many", "grouped", "single"), (3, 2, 1))
    grouped = next(g for g in (4, 3, 2, heads) if heads % g == 0)
    key_heads = {"many": heads, "grouped": heads // grouped, "single": 1}[shared]
    mask = draw.one_of("mask", ("none", "causal", "window"), (2, 3, 1))
    positions = draw.one_of("positions", ("none", "rotary", "alibi"), (2, 2, 1))
    return _Attention(
        width=sizes.width,
        heads=heads,
        key_heads=key_heads,
        head_width=head_width,
        is_cross=is_cross,
        mask="none" if is_cross else mask,
        mask_form=draw.one_of("mask form", ("boolean", "additive")),
        window=max(4, sizes.length // 4),
        positions="none" if is_cross else positions,
        softmax=draw.one_of("softmax", ("jax.nn", "by hand", "dot_product_attention"), (3, 2, 1)),
        wide_scores=draw.chance("scores in float32", 0.5),
        order=draw.one_of("order", ("einsum bthc", "einsum bhtc", "reshape and matmul")),
        norms_heads=draw.chance("norms of heads", 0.2),
        biases=draw.chance("biases", 0.3),
        dropout=draw.one_of("dropout", (0.0, 0.1), (3, 1)),
    )


def _block(chosen: _Attention) -> Block:
    kind = "cross attention" if chosen.is_cross else "attention"
    return Block(kind, functools.partial(_init, chosen), functools.partial(_apply, chosen))


def _init(chosen: _Attention, key: jax.Array) -> Params:
    width, heads, shared, head = (
        chosen.width,
        chosen.heads,
        chosen.key_heads,
        chosen.head_width,
    )
    for_query, for_key, for_value, for_out = keys(key, 4)
    params = {
        "query": kernel(for_query, width, heads, head),
        "key": kernel(for_key, width, shared, head),
        "value": kernel(for_value, width, shared, head),
        "out": kernel(for_out, heads, head, width, fan_in=heads * head),
    }
    if chosen.biases:
        params |= {"query_bias": jnp.zeros((heads, head)), "out_bias": jnp.zeros(width)}
    return params


def _apply(chosen: _Attention, params: Params, x: jax.Array, context: Context) -> jax.Array:
    read = context.memory if chosen.is_cross and context.memory is not None else x
    query = _projected(chosen, x, params["query"])
    key = _projected(chosen, read, params["key"])
    value = _projected(chosen, read, params["value"])
    if chosen.biases:
        query = query + params["query_bias"]
    if chosen.norms_heads:
        query, key = _unit(query), _unit(key)
    if chosen.positions == "rotary":
        query, key = rotary(query), rotary(key)
    if chosen.softmax == "dot_product_attention":
        mixed = _by_library(chosen, query, key, value)
    else:
        mixed = _by_hand(chosen, query, key, value, context.key)
    if chosen.order == "reshape and matmul":
        flat = mixed.reshape(*mixed.shape[:2], -1)
        out = flat @ params["out"].reshape(-1, chosen.width)
    else:
        out = jnp.einsum("bthc,hcd->btd", mixed, params["out"])
    return out + params["out_bias"] if chosen.biases else out


def _projected(chosen: _Attention, x: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns a projection of `x`: (batch, length, heads, head width)."""
    if chosen.order == "reshape and matmul":
        flat = x @ weights.reshape(weights.shape[0], -1)
        return flat.reshape(*x.shape[:2], *weights.shape[1:])
    return jnp.einsum("btd,dhc->bthc", x, weights)


def _by_hand(
    chosen: _Attention, query: jax.Array, key: jax.Array, value: jax.Array, dropout_key: jax.Array
) -> jax.Array:
    group = chosen.heads // chosen.key_heads
    if group > 1:
        key, value = jnp.repeat(key, group, axis=2), jnp.repeat(value, group, axis=2)
    scale = chosen.head_width**-0.5
    if chosen.order == "einsum bthc":
        scores = jnp.einsum("bqhc,bkhc->bhqk", query, key) * scale
    else:
        query, key, value = (t.transpose(0, 2, 1, 3) for t in (query, key, value))
        if chosen.order == "einsum bhtc":
            scores = jnp.einsum("bhqc,bhkc->bhqk", query * scale, key)
        else:
            scores = jnp.matmul(query, key.swapaxes(-1, -2)) * scale
    scores = _masked(chosen, scores.astype(jnp.float32) if chosen.wide_scores else scores)
    weights = _softmax(chosen, scores).astype(value.dtype)
    weights = dropout(weights, chosen.dropout, dropout_key)
    if chosen.order == "einsum bthc":
        return jnp.einsum("bhqk,bkhc->bqhc", weights, value)
    return jnp.matmul(weights, value).transpose(0, 2, 1, 3)


def _by_library(
    chosen: _Attention, query: jax.Array, key: jax.Array, value: jax.Array
) -> jax.Array:
    shape = (chosen.heads, query.shape[1], key.shape[1])
    mask = _mask(chosen, *shape[1:])
    bias = None if chosen.positions != "alibi" else alibi(*shape).astype(query.dtype)
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        None if bias is None else bias[None],
        None if mask is None else mask[None, None],
    )


def _masked(chosen: _Attention, scores: jax.Array) -> jax.Array:
    if chosen.positions == "alibi":
        scores = scores + alibi(*scores.shape[1:]).astype(scores.dtype)
    mask = _mask(chosen, *scores.shape[2:])
    if mask is None:
        return scores
    if chosen.mask_form == "boolean":
        return jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    return scores + jnp.where(mask, 0.0, -1e9).astype(scores.dtype)


def _mask(chosen: _Attention, queries: int, keys_: int) -> jax.Array | None:
    if chosen.mask == "none":
        return None
    distance = jnp.arange(queries)[:, None] - jnp.arange(keys_)[None, :]
    mask = distance >= 0
    return mask & (distance < chosen.window) if chosen.mask == "window" else mask


def _softmax(chosen: _Attention, scores: jax.Array) -> jax.Array:
    if chosen.softmax == "jax.nn":
        return jax.nn.softmax(scores)
    raised = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    return raised / raised.sum(-1, keepdims=True)


def _unit(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + 1e-6)


def rotary(x: jax.Array) -> jax.Array:
    """Applies rotary position embeddings to (batch, length, heads, head width)."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-jnp.arange(half) / half)
    angles = jnp.arange(x.shape[1])[:, None, None] * rates
    cosine, sine = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate([*turned, x[..., 2 * half :]], axis=-1)


def alibi(heads: int, queries: int, keys_: int) -> jax.Array:
    """Returns linear position biases: (heads, queries, keys)."""
    slopes = 2.0 ** (-8.0 * jnp.arange(1, heads + 1) / heads)
    distance = jnp.arange(keys_)[None, :] - jnp.arange(queries)[:, None]
    return slopes[:, None, None] * -jnp.abs(distance)
