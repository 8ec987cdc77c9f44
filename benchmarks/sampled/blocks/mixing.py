"""Sequences mixed without attention: one-dimensional convolutions, FFTs, matrices over
positions."""

import jax
import jax.numpy as jnp

from benchmarks.sampled.blocks.block import Block, Context, Params, kernel, keys
from benchmarks.sampled.drawing import Drawing
from benchmarks.sampled.sizes import Sizes


def draw_convolution_1d(draw: Drawing, sizes: Sizes) -> Block:
    """Draws a convolution along the sequence: plain, depthwise or dilated, causal or not."""
    kind = draw.one_of("kind", ("plain", "depthwise", "dilated"))
    taps = draw.one_of("taps", (3, 4, 7))
    causal = draw.chance("causal", 0.5)
    normed = draw.chance("weight norm", 0.25)
    gated = draw.chance("gated", 0.5)
    width = sizes.width
    groups = width if kind == "depthwise" else 1
    dilation = 2 if kind == "dilated" else 1

    def init(key: jax.Array) -> Params:
        for_taps, for_gate, for_out = keys(key, 3)
        params = {
            "taps": kernel(for_taps, taps, width // groups, width, fan_in=taps * width // groups),
            "gate": kernel(for_gate, width, width),
            "out": kernel(for_out, width, width),
        }
        if normed:
            params["length"] = jnp.ones(width)
        return params

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        weights = params["taps"]
        if normed:
            squares = jnp.square(weights).sum((0, 1), keepdims=True)
            weights = weights * jax.lax.rsqrt(squares + 1e-6) * params["length"]
        reach = dilation * (taps - 1)
        low = reach if causal else reach // 2
        mixed = jax.lax.conv_general_dilated(
            x,
            weights,
            (1,),
            [(low, reach - low)],
            rhs_dilation=(dilation,),
            dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=groups,
        )
        mixed = jax.nn.silu(mixed)
        if gated:
            mixed = mixed * jax.nn.sigmoid(x @ params["gate"])
        return mixed @ params["out"]

    return Block(f"1-D convolution ({kind})", init, apply)


def draw_fourier(draw: Drawing, sizes: Sizes) -> Block:
    """Draws mixing by FFT: without parameters (FNet), by a filter, or as a long convolution."""
    kind = draw.one_of("kind", ("real part of fft2", "filter", "long convolution"))
    width, length = sizes.width, sizes.length

    def init(key: jax.Array) -> Params:
        for_filter, for_out = keys(key, 2)
        return {
            "filter": kernel(for_filter, length, width, fan_in=length),
            "out": kernel(for_out, width, width),
        }

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        wide = x.astype(jnp.float32)
        if kind == "real part of fft2":
            mixed = jnp.fft.fft2(wide, axes=(1, 2)).real
        else:
            points = length if kind == "filter" else 2 * length
            taps = jnp.fft.rfft(params["filter"].astype(jnp.float32), points, axis=0)
            spectrum = jnp.fft.rfft(wide, points, axis=1) * taps
            mixed = jnp.fft.irfft(spectrum, points, axis=1)[:, :length]
        return mixed.astype(x.dtype) @ params["out"]

    return Block(f"FFT ({kind})", init, apply)


def draw_position_mixer(draw: Drawing, sizes: Sizes) -> Block:
    """Draws a perceptron along positions, as in MLP-Mixer."""
    hidden = max(4, sizes.length // 2)
    transposed = draw.chance("by transposing", 0.5)

    def init(key: jax.Array) -> Params:
        for_up, for_down = keys(key, 2)
        return {
            "up": kernel(for_up, sizes.length, hidden),
            "down": kernel(for_down, hidden, sizes.length),
        }

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        if transposed:
            inner = jax.nn.gelu(x.swapaxes(1, 2) @ params["up"])
            return (inner @ params["down"]).swapaxes(1, 2)
        inner = jax.nn.gelu(jnp.einsum("btd,tf->bfd", x, params["up"]))
        return jnp.einsum("bfd,ft->btd", inner, params["down"])

    return Block("MLP of positions", init, apply)
