"""Perceptrons of each position: plain, gated, and experts."""

import functools
import math

import jax
import jax.numpy as jnp

from benchmarks.sampled.blocks.block import Block, Context, Params, dropout, kernel, keys
from benchmarks.sampled.drawing import Drawing
from benchmarks.sampled.sizes import Sizes

_ACTIVATIONS = {
    "gelu": jax.nn.gelu,
    "exact gelu": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
    "squared relu": lambda x: jnp.square(jax.nn.relu(x)),
    "relu": jax.nn.relu,
}


def draw_mlp(draw: Drawing, sizes: Sizes) -> Block:
    """Draws two kernels with an activation between them, or three kernels with a gate."""
    gated = draw.chance("gated", 0.5)
    activate = _ACTIVATIONS[draw.one_of("activation", tuple(_ACTIVATIONS))]
    hidden = int(sizes.width * draw.one_of("hidden over width", (2, 8 / 3, 3, 4)))
    rate = draw.one_of("dropout", (0.0, 0.1), (3, 1))
    biases = draw.chance("biases", 0.4)

    def init(key: jax.Array) -> Params:
        for_up, for_gate, for_down = keys(key, 3)
        params = {
            "up": kernel(for_up, sizes.width, hidden),
            "down": kernel(for_down, hidden, sizes.width),
        }
        if gated:
            params["gate"] = kernel(for_gate, sizes.width, hidden)
        if biases:
            params |= {"up_bias": jnp.zeros(hidden), "down_bias": jnp.zeros(sizes.width)}
        return params

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        inner = x @ params["up"]
        if biases:
            inner = inner + params["up_bias"]
        inner = activate(x @ params["gate"]) * inner if gated else activate(inner)
        out = dropout(inner, rate, context.key) @ params["down"]
        return out + params["down_bias"] if biases else out

    return Block("SwiGLU" if gated else "MLP", init, apply)


def draw_experts(draw: Drawing, sizes: Sizes) -> Block:
    """Draws a mixture of experts. Each token goes to all experts, or to the best ones within a
    capacity."""
    experts = draw.one_of("experts", sizes.scale.experts)
    hidden = sizes.width * draw.one_of("hidden over width", (1, 2))
    dispatch = draw.one_of("dispatch", ("dense", "one-hot capacity", "gathered capacity"))
    best = draw.one_of("best", (1, 2))

    def init(key: jax.Array) -> Params:
        for_router, for_up, for_down = keys(key, 3)
        return {
            "router": kernel(for_router, sizes.width, experts),
            "up": kernel(for_up, experts, sizes.width, hidden, fan_in=sizes.width),
            "down": kernel(for_down, experts, hidden, sizes.width, fan_in=hidden),
        }

    def run(params: Params, x: jax.Array) -> jax.Array:
        """Applies each expert to its tokens: (experts, tokens, width) to the same shape."""
        inner = jax.nn.gelu(jnp.einsum("etd,edf->etf", x, params["up"]))
        return jnp.einsum("etf,efd->etd", inner, params["down"])

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        gates = jax.nn.softmax((x @ params["router"]).astype(jnp.float32)).astype(x.dtype)
        if dispatch == "dense":
            inner = jax.nn.gelu(jnp.einsum("btd,edf->btef", x, params["up"]))
            return jnp.einsum("btef,efd,bte->btd", inner, params["down"], gates)
        chosen, numbers = jax.lax.top_k(gates, best)
        capacity = max(1, math.ceil(1.25 * best * x.shape[1] / experts))
        if dispatch == "one-hot capacity":
            return _by_one_hot(run, params, x, chosen, numbers, capacity)
        return _by_gathering(run, params, x, gates, capacity)

    def _by_one_hot(run, params, x, chosen, numbers, capacity):
        """Dispatches as in GShard: tensors of (tokens, experts, places) move tokens to experts and
        back."""
        wanted = jax.nn.one_hot(numbers, experts, dtype=jnp.int32)  # b t k e
        flat = wanted.reshape(x.shape[0], -1, experts)
        place = jnp.cumsum(flat, axis=1) * flat - 1
        place = place.reshape(wanted.shape)
        slots = jax.nn.one_hot(place, capacity, dtype=x.dtype)  # b t k e c
        combine = jnp.einsum("btk,btkec->btec", chosen.astype(x.dtype), slots)
        dispatched = jnp.einsum("btec,btd->ebcd", (combine > 0).astype(x.dtype), x)
        batch = x.shape[0]
        out = run(params, dispatched.reshape(experts, batch * capacity, -1))
        out = out.reshape(experts, batch, capacity, -1)
        return jnp.einsum("btec,ebcd->btd", combine, out)

    def _by_gathering(run, params, x, gates, capacity):
        """Gathers the best tokens of each expert, and adds their results back."""
        weights, tokens = jax.lax.top_k(gates.swapaxes(1, 2), min(capacity, x.shape[1]))  # b e c
        rows = jnp.arange(x.shape[0])[:, None, None]
        taken = x[rows, tokens].swapaxes(0, 1)  # e b c d
        out = run(params, taken.reshape(experts, -1, x.shape[-1]))
        out = out.reshape(taken.shape).swapaxes(0, 1) * weights[..., None]
        return jnp.zeros_like(x).at[rows, tokens].add(out)

    return Block(f"experts ({dispatch})", init, apply)


def draw_routed_depth(draw: Drawing, sizes: Sizes) -> Block:
    """Draws a perceptron of the best tokens, which are gathered and scattered back."""
    hidden = 2 * sizes.width
    share = draw.one_of("share of tokens", (0.25, 0.5))
    sorted_by = draw.one_of("chosen by", ("top_k", "argsort"))

    def init(key: jax.Array) -> Params:
        for_router, for_up, for_down = keys(key, 3)
        return {
            "router": kernel(for_router, sizes.width, 1),
            "up": kernel(for_up, sizes.width, hidden),
            "down": kernel(for_down, hidden, sizes.width),
        }

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        scores = (x @ params["router"])[..., 0]
        count = max(1, int(share * x.shape[1]))
        if sorted_by == "top_k":
            _, tokens = jax.lax.top_k(scores, count)
        else:
            tokens = jnp.argsort(-scores, axis=-1)[:, :count]
        taken = jnp.take_along_axis(x, tokens[..., None], axis=1)
        gate = jax.nn.sigmoid(jnp.take_along_axis(scores, tokens, axis=1))[..., None]
        out = jax.nn.silu(taken @ params["up"]) @ params["down"] * gate
        return jnp.zeros_like(x).at[jnp.arange(x.shape[0])[:, None], tokens].set(out)

    return Block("gather and scatter", init, apply)
