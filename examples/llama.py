"""A Llama of scanned layers, trained with Adam: bfloat16 parameters, float32 moments.

The layers are one `jax.lax.scan`, which Kiwi plans operator by operator, so that 80 layers plan as
fast as one.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


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


SIZES = {
    "tiny": LlamaConfig(2, 64, 128, 4, 2, 8, 32, 256),
    "8b": LlamaConfig(32, 4096, 14336, 32, 8, 256, 2048),
    "70b": LlamaConfig(80, 8192, 28672, 64, 8, 256, 4096),
    "70b-large-batch": LlamaConfig(80, 8192, 28672, 64, 8, 512, 4096),
}


def abstract_state(config: LlamaConfig) -> dict[str, Any]:
    """Parameters and both moments, as shapes."""
    c, head = config, config.width // config.heads
    shapes = {
        "embedding": (c.vocabulary, c.width),
        "output": (c.width, c.vocabulary),
        "layers": {
            "attention_norm": (c.layers, c.width),
            "mlp_norm": (c.layers, c.width),
            "q": (c.layers, c.width, c.heads, head),
            "k": (c.layers, c.width, c.kv_heads, head),
            "v": (c.layers, c.width, c.kv_heads, head),
            "o": (c.layers, c.heads, head, c.width),
            "gate": (c.layers, c.width, c.hidden),
            "up": (c.layers, c.width, c.hidden),
            "down": (c.layers, c.hidden, c.width),
        },
    }

    def arrays(dtype: str) -> Any:
        is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
        return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, dtype), shapes, is_leaf=is_shape)

    return {"params": arrays("bfloat16"), "m": arrays("float32"), "v": arrays("float32")}


def abstract_batch(config: LlamaConfig) -> jax.ShapeDtypeStruct:
    """Tokens."""
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


def _loss(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
    x = params["embedding"][tokens]
    x, _ = jax.lax.scan(lambda x, p: (_layer(x, p), None), x, params["layers"])
    logits = (x @ params["output"]).astype(jnp.float32)[:, :-1]
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def make_train_step(config: LlamaConfig) -> Any:
    """A step from state and tokens to the new state and the loss."""

    def step(state: dict[str, Any], tokens: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(_loss)(state["params"], tokens)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(m.dtype), state["m"], gradients)
        v = jax.tree.map(
            lambda v, g: 0.95 * v + 0.05 * g.astype(v.dtype) ** 2, state["v"], gradients
        )
        update = lambda p, m, v: (  # noqa: E731
            p - config.learning_rate * m / (jnp.sqrt(v) + 1e-8)
        ).astype(p.dtype)
        return {"params": jax.tree.map(update, state["params"], m, v), "m": m, "v": v}, value

    return step
