"""Decoders as MaxText and axlearn train them: scanned layers, fully sharded, with Adam.

Weights and moments are float32, and the computation is bfloat16. Constraints shard activations
along the batch, as in those libraries. Parameters are sharded along their widest dimension.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from benchmarks.tpu.programs import TrainingStep

Params = dict[str, Any]


@dataclass(frozen=True)
class Decoder:
    """The size of a decoder, and the values that it keeps for the backward pass.

    - `gated`: whether the feed-forward network is SwiGLU, with three matrices.
    - `kept`: the values that a layer keeps besides its input: "nothing", or the results of its
      "matmuls".
    - `queries`: the number of parts of the queries whose attention is computed one after another,
      and recomputed in the backward pass. Only the scores of one part are in memory, as with the
      fused kernel of those libraries.
    - `tiles`: the number of parts of the sequence whose logits are computed one after another, and
      recomputed in the backward pass.
    """

    layers: int
    width: int
    heads: int
    head_width: int
    hidden: int
    vocabulary: int
    gated: bool
    kept: Literal["nothing", "matmuls"]
    queries: int = 1
    tiles: int = 1


def training_step(
    decoder: Decoder, batch: int, sequence: int, mesh_shape: tuple[int, ...], axes: tuple[str, ...]
) -> TrainingStep:
    """Returns a step for a mesh. The batch is sharded along all axes of the mesh."""
    auto = (AxisType.Auto,) * len(axes)  # jax 0.11 takes unnamed types for explicit.
    mesh = AbstractMesh(mesh_shape, axes, axis_types=auto)
    along_batch = NamedSharding(mesh, PartitionSpec(axes))
    placed = partial(jax.lax.with_sharding_constraint, shardings=along_batch)

    def step(state: Params, tokens: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(partial(_loss, decoder, placed))(
            state["params"], tokens
        )
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], gradients)
        v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, state["v"], gradients)
        update = lambda p, m, v: p - 1e-4 * m / (jnp.sqrt(v) + 1e-8)  # noqa: E731
        return {"params": jax.tree.map(update, state["params"], m, v), "m": m, "v": v}, loss

    shapes = _shapes(decoder)
    return TrainingStep(
        step,
        {"params": shapes, "m": shapes, "v": shapes},
        jax.ShapeDtypeStruct((batch, sequence), "int32"),
    )


def shardings(state: Any, axes: tuple[str, ...], devices: int) -> Any:
    """Returns shardings of each array's widest dimension that the number of devices divides, along
    the axes."""

    def of(path: Any, array: jax.ShapeDtypeStruct) -> PartitionSpec:
        # The dimension of layers is not sharded, because a scan cuts it.
        scanned = any(getattr(entry, "key", None) == "layers" for entry in path)
        sizes = [0 if s % devices else s for s in array.shape]
        sizes[: int(scanned)] = [0] * scanned
        if not any(sizes):
            return PartitionSpec()
        return PartitionSpec(*[None] * sizes.index(max(sizes)), axes)

    return jax.tree_util.tree_map_with_path(of, state)


def parameter_count(decoder: Decoder) -> int:
    """Returns the number of parameters."""
    return sum(prod(array.shape) for array in jax.tree.leaves(_shapes(decoder)))


def _shapes(decoder: Decoder) -> Params:
    d = decoder
    attention = (d.layers, d.width, d.heads, d.head_width)
    sizes: dict[str, Any] = {
        "embedding": (d.vocabulary, d.width),
        "output": (d.width, d.vocabulary),
        "layers": {
            "norms": (d.layers, 2, d.width),
            "q": attention,
            "k": attention,
            "v": attention,
            "o": (d.layers, d.heads, d.head_width, d.width),
            "up": (d.layers, d.width, d.hidden),
            "down": (d.layers, d.hidden, d.width),
        },
    }
    if d.gated:
        sizes["layers"]["gate"] = (d.layers, d.width, d.hidden)
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, "float32"), sizes, is_leaf=is_shape)


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
    return (scaled * scale).astype(x.dtype)


def _attention(parts: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    length = q.shape[2] // parts
    starts = length * jnp.arange(parts)
    of_part = partial(_attention_of_part, k, v)
    if parts == 1:
        return of_part(q, starts[0])
    checkpointed = jax.checkpoint(of_part)
    cut = jnp.moveaxis(q.reshape(*q.shape[:2], parts, length, -1), 2, 0)
    _, mixed = jax.lax.scan(lambda _, part: ((), checkpointed(*part)), (), (cut, starts))
    return jnp.moveaxis(mixed, 0, 2).reshape(q.shape)


def _attention_of_part(k: jax.Array, v: jax.Array, q: jax.Array, start: jax.Array) -> jax.Array:
    scores = jnp.einsum("bhsd,bhtd->bhst", q, k) * q.shape[-1] ** -0.5
    rows, columns = (jnp.arange(size) for size in scores.shape[-2:])
    causal = start + rows[:, None] >= columns
    weights = jax.nn.softmax(jnp.where(causal, scores.astype(jnp.float32), -1e30), -1)
    return jnp.einsum("bhst,bhtd->bhsd", weights.astype(q.dtype), v)


def _layer(decoder: Decoder, placed: Callable[..., Any], x: jax.Array, p: Params) -> jax.Array:
    w = jax.tree.map(lambda a: a.astype(x.dtype), p)
    x = placed(x)
    y = _norm(x, w["norms"][0])
    q, k, v = (jnp.einsum("bsm,mhd->bhsd", y, w[name]) for name in "qkv")
    mixed = _attention(decoder.queries, q, k, v)
    x = x + placed(jnp.einsum("bhsd,hdm->bsm", mixed, w["o"]))
    y = _norm(x, w["norms"][1])
    up = y @ w["up"]
    hidden = jax.nn.silu(y @ w["gate"]) * up if decoder.gated else jax.nn.relu(up)
    return x + placed(hidden @ w["down"])


def _checkpointed(decoder: Decoder, layer: Callable[..., Any]) -> Callable[..., Any]:
    policies = jax.checkpoint_policies
    kept = {"nothing": None, "matmuls": policies.dots_with_no_batch_dims_saveable}
    return jax.checkpoint(layer, policy=kept[decoder.kept])


def _loss(
    decoder: Decoder, placed: Callable[..., Any], params: Params, tokens: jax.Array
) -> jax.Array:
    x = placed(params["embedding"].astype(jnp.bfloat16)[tokens])
    layer = _checkpointed(decoder, partial(_layer, decoder, placed))
    x, _ = jax.lax.scan(lambda x, p: (layer(x, p), None), x, params["layers"])
    output = params["output"].astype(jnp.bfloat16)
    if decoder.tiles == 1:
        return _cross_entropy(placed, output, x, tokens) / tokens.size
    tiled = jax.checkpoint(partial(_cross_entropy, placed, output))
    # The sequence is cut, so that each part has the same length on every device.
    cut = lambda a: a.reshape(a.shape[0], decoder.tiles, -1, *a.shape[2:])  # noqa: E731
    parts = tuple(jnp.moveaxis(cut(a), 1, 0) for a in (x, tokens))
    total, _ = jax.lax.scan(lambda sum, part: (sum + tiled(*part), None), 0.0, parts)
    return total / tokens.size


def _cross_entropy(
    placed: Callable[..., Any], output: jax.Array, x: jax.Array, tokens: jax.Array
) -> jax.Array:
    logits = placed((x @ output).astype(jnp.float32))
    chosen = jnp.take_along_axis(logits, tokens[..., None], -1)[..., 0]
    return jnp.sum(jax.nn.logsumexp(logits, -1) - chosen)
