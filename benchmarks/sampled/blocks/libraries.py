"""Blocks of model libraries: Flax and Equinox."""

import equinox
import jax
import jax.numpy as jnp
from flax import linen, nnx

from benchmarks.sampled.blocks.block import Block, Context, Params
from benchmarks.sampled.drawing import Drawing
from benchmarks.sampled.sizes import Sizes


def _heads(sizes: Sizes, draw: Drawing) -> int:
    """Returns a number of heads that divides the width."""
    wanted = max(1, sizes.width // draw.one_of("head width", sizes.scale.head_widths))
    return next(heads for heads in range(wanted, 0, -1) if sizes.width % heads == 0)


def draw_linen(draw: Drawing, sizes: Sizes) -> Block:
    """Draws attention and a perceptron of Flax Linen, or its LSTM."""
    kind = draw.one_of("kind", ("attention", "RNN"), (2, 1))
    heads, width = _heads(sizes, draw), sizes.width
    causal = draw.chance("causal", 0.5)

    class Layer(linen.Module):
        @linen.compact
        def __call__(self, x):
            if kind == "RNN":
                return linen.RNN(linen.OptimizedLSTMCell(width))(x)
            mask = linen.make_causal_mask(x[..., 0]) if causal else None
            x = x + linen.MultiHeadDotProductAttention(num_heads=heads)(x, x, mask=mask)
            inner = linen.gelu(linen.Dense(2 * width)(linen.LayerNorm()(x)))
            return linen.Dense(width)(inner)

    layer = Layer()

    def init(key: jax.Array) -> Params:
        return layer.init(key, jnp.zeros((1, sizes.length, width)))["params"]

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        return layer.apply({"params": params}, x).astype(x.dtype)  # pyright: ignore

    return Block(f"Flax Linen {kind}", init, apply)


def draw_nnx(draw: Drawing, sizes: Sizes) -> Block:
    """Draws attention and a perceptron of Flax NNX."""
    heads, width = _heads(sizes, draw), sizes.width
    causal = draw.chance("causal", 0.5)

    class Layer(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.attention = nnx.MultiHeadAttention(
                num_heads=heads, in_features=width, decode=False, rngs=rngs
            )
            self.norm = nnx.RMSNorm(width, rngs=rngs)
            self.up = nnx.Linear(width, 2 * width, rngs=rngs)
            self.down = nnx.Linear(2 * width, width, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            mask = nnx.make_causal_mask(x[..., 0]) if causal else None
            x = x + self.attention(x, mask=mask)
            return self.down(nnx.gelu(self.up(self.norm(x))))

    graph, _ = nnx.split(nnx.eval_shape(lambda: Layer(nnx.Rngs(0))))

    def init(key: jax.Array) -> Params:
        return nnx.to_pure_dict(nnx.state(Layer(nnx.Rngs(key))))

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        state = nnx.state(nnx.eval_shape(lambda: Layer(nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(x).astype(x.dtype)

    return Block("Flax NNX attention", init, apply)


def draw_equinox(draw: Drawing, sizes: Sizes) -> Block:
    """Draws attention, a GRU or a convolution of Equinox, whose modules take one example."""
    kind = draw.one_of("kind", ("attention", "GRU", "convolution"))
    heads, width = _heads(sizes, draw), sizes.width

    def made(key: jax.Array):
        if kind == "attention":
            return equinox.nn.MultiheadAttention(heads, width, key=key)
        if kind == "GRU":
            return equinox.nn.GRUCell(width, width, key=key)
        return equinox.nn.Conv1d(width, width, 3, padding=1, key=key)

    def one(module, x: jax.Array) -> jax.Array:
        if kind == "attention":
            return module(x, x, x)
        if kind == "convolution":
            return module(x.T).T

        def step(state: jax.Array, now: jax.Array):
            state = module(now, state)
            return state, state

        return jax.lax.scan(step, jnp.zeros(width, x.dtype), x)[1]

    _, static = equinox.partition(
        equinox.filter_eval_shape(made, jax.random.key(0)),
        lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct),
    )

    def init(key: jax.Array) -> Params:
        return dict(enumerate(jax.tree.leaves(equinox.filter(made(key), equinox.is_array))))

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        arrays = equinox.filter(
            equinox.filter_eval_shape(made, jax.random.key(0)),
            lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct),
        )
        leaves = [params[number] for number in range(len(params))]
        module = equinox.combine(jax.tree.unflatten(jax.tree.structure(arrays), leaves), static)
        return jax.vmap(lambda row: one(module, row))(x).astype(x.dtype)

    return Block(f"Equinox {kind}", init, apply)
