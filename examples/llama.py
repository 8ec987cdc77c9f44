"""A Llama of scanned layers, trained with Adam: bfloat16 parameters, float32 moments.

The layers are one `jax.lax.scan`, which Kiwi plans operator by operator: 80 layers plan as fast as
one. With several stages the layers are a pipeline (`kiwi.layers`), which takes the microbatches;
without stages the gradients of the microbatches are summed. This command searches the best
configuration for some devices:

    kiwi search examples/llama.py:make_step --devices 32 --batch 256 --microbatches 1,4 --stages 1,2
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

import kiwi
from examples._common import (
    Remat,
    Specs,
    apply_remat,
    data_parallel_specs,
    fsdp_specs,
    mixed_specs,
    specs_by_name,
)

__all__ = [
    "SIZES",
    "LlamaConfig",
    "abstract_batch",
    "abstract_state",
    "data_parallel_specs",
    "fsdp_specs",
    "make_step",
    "make_train_step",
    "megatron_specs",
    "mixed_specs",
]


@dataclass(frozen=True)
class LlamaConfig:
    """Size of a Llama and of its batch."""

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    batch: int
    sequence: int
    vocabulary: int = 128_256
    learning_rate: float = 1e-4
    scanned: bool = True
    """Whether the layers are one scan over stacked parameters; otherwise they are a list that runs
    unrolled."""


SIZES = {
    "tiny": LlamaConfig(2, 64, 128, 4, 2, 8, 32, 256),
    "8b": LlamaConfig(32, 4096, 14336, 32, 8, 256, 2048),
    "70b": LlamaConfig(80, 8192, 28672, 64, 8, 256, 4096),
    "70b-large-batch": LlamaConfig(80, 8192, 28672, 64, 8, 512, 4096),
}


def abstract_state(config: LlamaConfig) -> dict[str, Any]:
    """Returns the parameters and both moments, as shapes."""
    c, head = config, config.width // config.heads
    shapes: dict[str, Any] = {
        "embedding": (c.vocabulary, c.width),
        "output": (c.width, c.vocabulary),
    }
    layer = {
        "attention_norm": (c.width,),
        "mlp_norm": (c.width,),
        "q": (c.width, c.heads, head),
        "k": (c.width, c.kv_heads, head),
        "v": (c.width, c.kv_heads, head),
        "o": (c.heads, head, c.width),
        "gate": (c.width, c.hidden),
        "up": (c.width, c.hidden),
        "down": (c.hidden, c.width),
    }
    stacked = {name: (c.layers, *shape) for name, shape in layer.items()}
    shapes["layers"] = stacked if c.scanned else [layer] * c.layers

    def arrays(dtype: str) -> Any:
        is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, dtype), shapes, is_leaf=is_shape)

    return {"params": arrays("bfloat16"), "m": arrays("float32"), "v": arrays("float32")}


def abstract_batch(config: LlamaConfig) -> jax.ShapeDtypeStruct:
    """Returns the shape of the tokens, int32 [batch, sequence]."""
    return jax.ShapeDtypeStruct((config.batch, config.sequence), "int32")


def _norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32)
    scaled = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
    return (scaled * scale).astype(jnp.bfloat16)


def _rotated(x: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 5e5 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(jnp.bfloat16)


def _layer(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
    y = _norm(x, p["attention_norm"])
    q = _rotated(jnp.einsum("bsd,dhk->bshk", y, p["q"]))
    k = _rotated(jnp.einsum("bsd,dhk->bshk", y, p["k"]))
    v = jnp.einsum("bsd,dhk->bshk", y, p["v"])
    q = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    scores = jnp.einsum("bqgrk,bsgk->bgrqs", q, k) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores.astype(jnp.float32), -1e30), -1)
    mixed = jnp.einsum("bgrqs,bsgk->bqgrk", weights.astype(jnp.bfloat16), v)
    x = x + jnp.einsum("bshk,hkd->bsd", mixed.reshape(*x.shape[:2], *p["o"].shape[:2]), p["o"])
    y = _norm(x, p["mlp_norm"])
    return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"]


def _loss(
    params: dict[str, Any], tokens: jax.Array, remat: Remat = None, **pipeline: int
) -> jax.Array:
    x, layers = params["embedding"][tokens], params["layers"]
    layer = apply_remat(_layer, remat)
    if isinstance(layers, list):
        x = functools.reduce(layer, layers, x)
    else:
        x, _ = kiwi.layers(lambda x, p: (layer(x, p), None), x, layers, **pipeline)
    logits = (x @ params["output"]).astype(jnp.float32)[:, :-1]
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def _gradients(params: Any, tokens: jax.Array, microbatches: int, stages: int, remat: Remat) -> Any:
    """Returns the loss and its gradients. Without a pipeline, the gradients of several microbatches
    are summed in float32."""
    if stages > 1 or microbatches == 1:
        pipeline = {"stages": stages, "microbatches": microbatches}
        return jax.value_and_grad(lambda p: _loss(p, tokens, remat, **pipeline))(params)
    parts = tokens.reshape(-1, microbatches, tokens.shape[1]).swapaxes(0, 1)

    def add(sums: Any, part: jax.Array) -> tuple[Any, None]:
        part_gradients = jax.value_and_grad(_loss)(params, part, remat)
        return jax.tree.map(lambda s, g: s + g.astype(s.dtype), sums, part_gradients), None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, "float32"), (jnp.zeros(()), params))
    sums, _ = jax.lax.scan(add, zeros, parts)
    return jax.tree.map(lambda s: s / microbatches, sums)


def make_train_step(
    config: LlamaConfig, *, microbatches: int = 1, stages: int = 1, remat: Remat = None
) -> Any:
    """Returns a step from state and tokens to the new state and the loss. `remat` applies to each
    layer."""

    def step(state: dict[str, Any], tokens: jax.Array) -> Any:
        value, gradients = _gradients(state["params"], tokens, microbatches, stages, remat)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(m.dtype), state["m"], gradients)
        v = jax.tree.map(
            lambda v, g: 0.95 * v + 0.05 * g.astype(v.dtype) ** 2, state["v"], gradients
        )
        update = lambda p, m, v: (  # noqa: E731
            p - config.learning_rate * m / (jnp.sqrt(v) + 1e-8)
        ).astype(p.dtype)
        return {"params": jax.tree.map(update, state["params"], m, v), "m": m, "v": v}, value

    return step


def megatron_specs(state: dict[str, Any], data_axis: str | None, model_axis: str) -> Specs:
    """Tensor parallelism as in Megatron-LM (Shoeybi et al. 2019): splits heads, hidden units and
    vocabulary along `model_axis`. The axis also splits the heads of keys and values, and must
    divide their number."""
    layers = state["params"]["layers"]
    stack = () if isinstance(layers, list) else (None,)
    column = PartitionSpec(*stack, None, model_axis)
    row = PartitionSpec(*stack, model_axis)
    by_name = {
        **dict.fromkeys([("q",), ("k",), ("layers", "v"), ("gate",), ("up",)], column),
        **dict.fromkeys([("o",), ("down",)], row),
        ("embedding",): PartitionSpec(model_axis),
        ("output",): PartitionSpec(None, model_axis),
    }
    return specs_by_name(state, by_name, data_axis)


def make_step(
    batch_size: int, microbatches: int = 1, stages: int = 1, size: str = "8b"
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the step and its arguments as shapes, for `kiwi.search`."""
    config = replace(SIZES[size], batch=batch_size)
    if batch_size % microbatches or config.layers % stages:
        raise ValueError("microbatches do not divide the batch, or stages the layers")
    step = make_train_step(config, microbatches=microbatches, stages=stages)
    return step, (abstract_state(config), abstract_batch(config))
