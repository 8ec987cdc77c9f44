"""Decoders as MaxText, axlearn and JAX-Toolbox train them: scanned layers, attention as one kernel.

Weights and moments are float32 unless a row says otherwise, and the computation is bfloat16.
Constraints shard activations along the batch, as in those libraries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel,
    splash_attention_mask,
)
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import kiwi
from benchmarks.published.rows import PublishedStep
from kiwi.hlo.kernels import KERNEL

Params = dict[str, Any]

_BLOCK = 512
"""The number of rows and columns of a block of scores in splash attention."""

_OF_ATTENTION = ("s", "t", "d", "g")


@dataclass(frozen=True)
class Decoder:
    """A decoder, with the values that it keeps for the backward pass.

    - `mlp`: "swiglu", "gelu" or "relu"; `experts`: the number of experts; 0 for a dense layer. Each
      token takes `top` experts, and an expert has `capacity` times its even share of places.
    - `kept`: as in `PublishedStep`. None uses no `jax.checkpoint`.
    - `on_tpus`: whether attention is the kernel for TPUs; otherwise it is cuDNN's kernel.
    - `tiles`: the number of parts of the sequence whose logits are computed one after another, and
      recomputed in the backward pass.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    hidden: int
    vocabulary: int
    mlp: str
    kept: frozenset[str] | None
    on_tpus: bool
    weights: str = "float32"
    first_moment: str = "float32"
    experts: int = 0
    top: int = 2
    capacity: float = 1.25
    tiles: int = 1

    @classmethod
    def of(cls, step: PublishedStep) -> "Decoder":
        """Returns the decoder of a row."""
        is_mixture = "experts" in step.mlp
        narrow = "bf16 weights" in step.other
        return cls(
            step.layers,
            step.width,
            step.heads,
            step.kv_heads,
            step.head_width,
            step.mlp_width,
            step.vocabulary,
            step.mlp.split(",")[0],
            step.kept,
            step.on_tpus,
            weights="bfloat16" if narrow else "float32",
            first_moment="bfloat16" if narrow else "float32",
            experts=8 if is_mixture else 0,
            tiles=4 if "vocab tiling 4" in step.other else 1,
        )


@dataclass(frozen=True)
class Axes:
    """The mesh axes along which dimensions are sharded: the batch, the width of weights (`fsdp`),
    and heads, hidden units and vocabulary (`tensor`)."""

    shape: tuple[int, ...]
    names: tuple[str, ...]
    fsdp: tuple[str, ...]
    tensor: tuple[str, ...]

    @property
    def batch(self) -> tuple[str, ...]:
        """All axes except the tensor axes."""
        return tuple(name for name in self.names if name not in self.tensor)


def training_step(decoder: Decoder, axes: Axes | None) -> Callable[..., Any]:
    """Returns a step of AdamW from state and tokens to the new state and the loss. Without axes,
    activations have no sharding constraints."""
    loss = partial(_loss, decoder, _Placing(axes))

    def step(state: Params, tokens: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(state["params"], tokens)

        def moment(old: jax.Array, gradient: jax.Array, share: float) -> jax.Array:
            return (share * old + (1 - share) * gradient).astype(old.dtype)

        wide = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
        m = jax.tree.map(lambda m, g: moment(m, g, 0.9), state["m"], wide)
        v = jax.tree.map(lambda v, g: moment(v, g * g, 0.95), state["v"], wide)

        def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            step = m.astype(jnp.float32) / (jnp.sqrt(v) + 1e-8) + 0.1 * p.astype(jnp.float32)
            return (p.astype(jnp.float32) - 1e-4 * step).astype(p.dtype)

        return {"params": jax.tree.map(update, state["params"], m, v), "m": m, "v": v}, value

    return step


def abstract_state(decoder: Decoder) -> Params:
    """Returns the parameters and both moments, as shapes."""
    shapes = _map_names(lambda names: tuple(_SIZES[n](decoder) for n in names), decoder)

    def arrays(dtype: str) -> Any:
        is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, dtype), shapes, is_leaf=is_shape)

    moments = {"m": arrays(decoder.first_moment), "v": arrays("float32")}
    return {"params": arrays(decoder.weights), **moments}


def state_specs(decoder: Decoder, axes: Axes) -> Any:
    """Returns the shardings of the state: along its width over the `fsdp` axes, and along heads,
    hidden units and vocabulary over the `tensor` axes."""
    along = {"width": axes.fsdp, "heads": axes.tensor, "hidden": axes.tensor}
    along |= {"kv_heads": axes.tensor, "vocabulary": axes.tensor}

    def spec(names: tuple[str, ...]) -> PartitionSpec:
        if (len(names) <= 2 and "layers" in names) or "norms" in names:
            return PartitionSpec()
        return PartitionSpec(*(along.get(name) or None for name in names))

    specs = _map_names(spec, decoder)
    return {"params": specs, "m": specs, "v": specs}


def parameter_count(decoder: Decoder) -> int:
    """Returns the number of parameters."""
    return sum(prod(array.shape) for array in jax.tree.leaves(abstract_state(decoder)["params"]))


_SIZES: dict[str, Callable[[Decoder], int]] = {
    "layers": lambda d: d.layers,
    "width": lambda d: d.width,
    "heads": lambda d: d.heads,
    "kv_heads": lambda d: d.kv_heads,
    "head_width": lambda d: d.head_width,
    "hidden": lambda d: d.hidden,
    "vocabulary": lambda d: d.vocabulary,
    "experts": lambda d: d.experts,
    "norms": lambda d: 2,
}


def _map_names(of: Callable[[tuple[str, ...]], Any], decoder: Decoder) -> Params:
    """Returns the result of `of` for each parameter, given the names of its dimensions."""
    mixed = ("experts",) if decoder.experts else ()
    up, down = ("layers", *mixed, "width", "hidden"), ("layers", *mixed, "hidden", "width")
    layers = {
        "norms": ("layers", "norms", "width"),
        "q": ("layers", "width", "heads", "head_width"),
        "k": ("layers", "width", "kv_heads", "head_width"),
        "v": ("layers", "width", "kv_heads", "head_width"),
        "o": ("layers", "heads", "head_width", "width"),
        "up": up,
        "down": down,
    }
    if decoder.mlp == "swiglu":
        layers["gate"] = up
    if decoder.experts:
        layers["router"] = ("layers", "width", "experts")
    names = {
        "embedding": ("vocabulary", "width"),
        "output": ("width", "vocabulary"),
        "layers": layers,
    }
    return jax.tree.map(of, names, is_leaf=lambda x: isinstance(x, tuple))


@dataclass(frozen=True)
class _Placing:
    """Sharding constraints on activations."""

    axes: Axes | None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Constrains an activation along the batch, and along the width over the tensor axes."""
        if self.axes is None:
            return x
        auto = (AxisType.Auto,) * len(self.axes.shape)  # jax 0.11 takes unnamed types for explicit.
        mesh = AbstractMesh(self.axes.shape, self.axes.names, axis_types=auto)
        width = (None, self.axes.tensor) if self.axes.tensor else ()
        spec = NamedSharding(mesh, PartitionSpec(self.axes.batch, *width))
        return jax.lax.with_sharding_constraint(x, spec)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
    return (scaled * scale).astype(x.dtype)


def _rotated(x: jax.Array) -> jax.Array:
    """Applies rotary position embeddings to `x` [batch, heads, length, head width]."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[2])[:, None] * 5e5 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def _splash(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    heads, length = q.shape[1:3]
    causal = splash_attention_mask.CausalMask((length, length))
    mask = splash_attention_mask.MultiHeadMask([causal] * heads)
    block = min(_BLOCK, length)
    blocks = splash_attention_kernel.BlockSizes(
        **dict.fromkeys(("block_q", "block_kv", "block_kv_compute"), block),
        **dict.fromkeys(("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute"), block),
        **dict.fromkeys(("block_q_dq", "block_kv_dq"), block),
    )
    kernel = splash_attention_kernel.make_splash_mha(
        mask, head_shards=1, q_seq_shards=1, block_sizes=blocks
    )
    mixed: jax.Array = jax.vmap(kernel)(q, k, v)
    return mixed


def _cudnn(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, implementation="cudnn", is_causal=True)


_on_tpus = kiwi.sharding_rule(
    _splash,
    "b (k g) s d, b k t d, b k t d -> b (k g) s d",
    need_replication_factors=_OF_ATTENTION,
    share_of_work=0.5,
)
_on_gpus = kiwi.sharding_rule(
    _cudnn,
    "b s (k g) d, b t k d, b t k d -> b s (k g) d",
    need_replication_factors=_OF_ATTENTION,
    share_of_work=0.5,
)


def _attention(decoder: Decoder, y: jax.Array, w: Params) -> jax.Array:
    layout = "bhsd" if decoder.on_tpus else "bshd"
    q, k, v = (checkpoint_name(jnp.einsum(f"bsm,mhd->{layout}", y, w[n]), n) for n in "qkv")
    if decoder.mlp == "swiglu":
        q, k = (_turned(layout, x) for x in (q, k))
    attend = _on_tpus if decoder.on_tpus else _on_gpus
    mixed = attend(q * decoder.head_width**-0.5, k, v) if decoder.on_tpus else attend(q, k, v)
    return checkpoint_name(jnp.einsum(f"{layout},hdm->bsm", mixed, w["o"]), "out")


def _turned(layout: str, x: jax.Array) -> jax.Array:
    if layout == "bhsd":
        return _rotated(x)
    return _rotated(x.swapaxes(1, 2)).swapaxes(1, 2)


def _dense(decoder: Decoder, y: jax.Array, w: Params) -> jax.Array:
    up = y @ w["up"]
    if decoder.mlp == "swiglu":
        return (jax.nn.silu(y @ w["gate"]) * up) @ w["down"]
    return (jax.nn.gelu if decoder.mlp == "gelu" else jax.nn.relu)(up) @ w["down"]


def _experts(decoder: Decoder, y: jax.Array, w: Params) -> jax.Array:
    """A mixture of experts with a fixed number of places for each expert and sequence. Tokens
    without a place are dropped."""
    tokens = y.shape[1]
    places = int(decoder.capacity * decoder.top * tokens / decoder.experts)
    scores = jax.nn.softmax((y @ w["router"]).astype(jnp.float32), -1)
    weight, chosen = jax.lax.top_k(scores, decoder.top)
    is_chosen = jax.nn.one_hot(chosen, decoder.experts).sum(2)
    place = jnp.cumsum(is_chosen, 1) - 1
    fits = (is_chosen > 0) & (place < places)
    sent = (jax.nn.one_hot(place, places) * fits[..., None]).astype(y.dtype)
    weights = (scores * is_chosen / weight.sum(-1, keepdims=True)).astype(y.dtype)
    x = jnp.einsum("bsep,bsm->bepm", sent, y)
    up = jnp.einsum("bepm,emh->beph", x, w["up"])
    gate = jnp.einsum("bepm,emh->beph", x, w["gate"])
    outputs = jnp.einsum("beph,ehm->bepm", jax.nn.silu(gate) * up, w["down"])
    return jnp.einsum("bepm,bsep->bsm", outputs, sent * weights[..., None])


def _layer(decoder: Decoder, placed: _Placing, x: jax.Array, p: Params) -> jax.Array:
    w = jax.tree.map(lambda a: a.astype(x.dtype), p)
    x = checkpoint_name(placed(x), "in")
    x = x + placed(_attention(decoder, _norm(x, w["norms"][0]), w))
    mlp = _experts if decoder.experts else _dense
    return x + placed(checkpoint_name(mlp(decoder, _norm(x, w["norms"][1]), w), "wo"))


def _checkpointed(decoder: Decoder, layer: Callable[..., Any]) -> Callable[..., Any]:
    if decoder.kept is None:
        return layer
    matmuls = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    named = jax.checkpoint_policies.save_only_these_names(*decoder.kept)

    def policy(primitive: Any, *args: Any, **params: Any) -> Any:
        if primitive.name == KERNEL:  # The attention, with the values that its gradient needs.
            return "context" in decoder.kept
        of_matmul = "matmuls" in decoder.kept and matmuls(primitive, *args, **params)
        return of_matmul or named(primitive, *args, **params)

    return jax.checkpoint(layer, policy=policy)


def _loss(decoder: Decoder, placed: _Placing, params: Params, tokens: jax.Array) -> jax.Array:
    x = placed(params["embedding"].astype(jnp.bfloat16)[tokens])
    layer = _checkpointed(decoder, partial(_layer, decoder, placed))
    x, _ = jax.lax.scan(lambda x, p: (layer(x, p), None), x, params["layers"])
    output = params["output"].astype(jnp.bfloat16)
    if decoder.tiles == 1:
        return _cross_entropy(output, x, tokens) / tokens.size
    tiled = jax.checkpoint(partial(_cross_entropy, output))
    # The sequence is cut, so that each part has the same length on every device.
    cut = lambda a: a.reshape(a.shape[0], decoder.tiles, -1, *a.shape[2:])  # noqa: E731
    parts = tuple(jnp.moveaxis(cut(a), 1, 0) for a in (x, tokens))
    total, _ = jax.lax.scan(lambda sum, part: (sum + tiled(*part), None), 0.0, parts)
    return total / tokens.size


def _cross_entropy(output: jax.Array, x: jax.Array, tokens: jax.Array) -> jax.Array:
    """Returns the summed cross-entropy, with one-hot tokens as in MaxText. A gather would hold the
    logits in float32."""
    logits = (x @ output).astype(jnp.float32)
    chosen = jnp.sum(logits * jax.nn.one_hot(tokens, logits.shape[-1]), -1)
    return jnp.sum(jax.nn.logsumexp(logits, -1) - chosen)
