"""Attention without a kernel on TPUs, and dropout: the values that have buffers."""

import jax
import jax.numpy as jnp
import pytest

from tests.xla.tpu.test_buffers import needs_compiler, planned

BATCH, SEQUENCE, HEADS, WIDTH = 32, 512, 16, 64


def attention(q: jax.Array, k: jax.Array, v: jax.Array, is_wide: bool, is_causal: bool):
    """Attention [B, S, H, D]. The softmax of masked scores is computed in float32 or in their own
    type."""
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k) * q.shape[-1] ** -0.5
    scores = scores.astype(jnp.float32) if is_wide else scores
    rows = jnp.arange(scores.shape[-1])
    scores = jnp.where(rows[:, None] >= rows, scores, -1e30) if is_causal else scores
    weights = jax.nn.softmax(scores, -1).astype(q.dtype)
    return jnp.einsum("bhqs,bshk->bqhk", weights, v)


def gradient(has_biases: bool, is_wide: bool, is_causal: bool):
    def loss(params, x):
        added = (lambda name: params["b" + name]) if has_biases else (lambda _: 0)
        q, k, v = (jnp.einsum("bsm,mhk->bshk", x, params[n]) + added(n) for n in "qkv")
        y = attention(q, k, v, is_wide, is_causal)
        return jnp.mean(jnp.einsum("bshk,hkm->bsm", y, params["o"]).astype(jnp.float32) ** 2)

    return jax.grad(loss)


def arrays(dtype: str, has_biases: bool):
    shapes = {name: (HEADS * WIDTH, HEADS, WIDTH) for name in "qkv"}
    shapes |= {"o": (HEADS, WIDTH, HEADS * WIDTH)}
    shapes |= {"b" + name: (HEADS, WIDTH) for name in "qkv"} if has_biases else {}
    params = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}
    return params, jax.ShapeDtypeStruct((BATCH, SEQUENCE, HEADS * WIDTH), dtype)


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "has_biases", "is_wide", "is_causal"),
    [
        ("float32", True, False, True),
        ("bfloat16", True, True, True),
        ("bfloat16", False, False, False),
    ],
)
def test_attention_is_predicted(dtype: str, has_biases: bool, is_wide: bool, is_causal: bool):
    """Without its rules most of these were 13 to 22 % too small, and one 33 % too large."""
    function = gradient(has_biases, is_wide, is_causal)
    found = planned(function, *arrays(dtype, has_biases))
    assert found.compiled is not None
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.08)


@needs_compiler
def test_random_bits_are_made_wherever_they_are_read():
    """A mask of dropout is made again for the gradient, and not held until then."""
    mask = (4096, 2048)

    def loss(w: jax.Array, x: jax.Array, key: jax.Array) -> jax.Array:
        for layer in range(4):
            kept = jax.random.bernoulli(jax.random.fold_in(key, layer), 0.9, mask)
            x = x + jnp.where(kept, x @ w, 0) / 0.9
        return jnp.sum(x**2)

    arguments = (jax.ShapeDtypeStruct(s, "float32") for s in ((2048, 2048), mask))
    found = planned(jax.grad(loss), *arguments, jax.eval_shape(lambda: jax.random.key(0)))
    assert not [d for d in found.decisions if d.opcode == "xor" and d.shape == mask]
    assert found.compiled is not None
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.08)
