"""Blocks for images, (batch, height, width, channels)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks.sampled.blocks.block import Block, Context, Params, kernel, keys
from benchmarks.sampled.blocks.norms import IMAGE_NORMS, draw_norm, norm_params
from benchmarks.sampled.drawing import Drawing
from benchmarks.sampled.sizes import Sizes

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def convolve(
    x: jax.Array,
    weights: jax.Array,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> jax.Array:
    """Applies a convolution that keeps height and width, divided by the stride."""
    return jax.lax.conv_general_dilated(
        x,
        weights.astype(x.dtype),
        (stride, stride),
        "SAME",
        rhs_dilation=(dilation, dilation),
        dimension_numbers=_LAYOUT,
        feature_group_count=groups,
    )


def _kernel(key: jax.Array, side: int, before: int, after: int) -> jax.Array:
    return kernel(key, side, side, before, after, fan_in=side * side * before)


_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "leaky relu": jax.nn.leaky_relu,
}


def draw_residual_convolutions(draw: Drawing, sizes: Sizes) -> Block:
    """Draws two convolutions with norms, added to their input."""
    norm = draw_norm(draw, IMAGE_NORMS)
    activate = _ACTIVATIONS[draw.one_of("activation", tuple(_ACTIVATIONS))]
    before = draw.chance("norm before", 0.5)
    dilation = draw.one_of("dilation", (1, 2), (3, 1))
    channels = sizes.channels

    def init(key: jax.Array) -> Params:
        first, second = keys(key, 2)
        return {
            "first": _kernel(first, 3, channels, channels),
            "second": _kernel(second, 3, channels, channels),
            "first_norm": norm_params(channels),
            "second_norm": norm_params(channels),
        }

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        if before:
            inner = convolve(activate(norm(params["first_norm"], x)), params["first"])
            inner = activate(norm(params["second_norm"], inner))
            return x + convolve(inner, params["second"], dilation=dilation)
        inner = activate(norm(params["first_norm"], convolve(x, params["first"])))
        inner = norm(params["second_norm"], convolve(inner, params["second"], dilation=dilation))
        return activate(x + inner)

    return Block("2-D convolutions", init, apply)


def draw_depthwise(draw: Drawing, sizes: Sizes) -> Block:
    """Draws a depthwise convolution, a norm and a perceptron of each pixel, as in ConvNeXt."""
    side = draw.one_of("side", (3, 5, 7))
    norm = draw_norm(draw, IMAGE_NORMS)
    channels = sizes.channels

    def init(key: jax.Array) -> Params:
        for_side, for_up, for_down = keys(key, 3)
        return {
            "side": kernel(for_side, side, side, 1, channels, fan_in=side * side),
            "up": kernel(for_up, channels, 4 * channels),
            "down": kernel(for_down, 4 * channels, channels),
            "norm": norm_params(channels),
        }

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        inner = norm(params["norm"], convolve(x, params["side"], groups=channels))
        return x + jax.nn.gelu(inner @ params["up"]) @ params["down"]

    return Block("depthwise convolution", init, apply)


def draw_hourglass(draw: Drawing, sizes: Sizes) -> Block:
    """Draws a block that halves height and width by a stride or by pooling, and doubles them by a
    transposed convolution or by resizing."""
    down = draw.one_of("down", ("stride", "max pooling", "average pooling"))
    up = draw.one_of("up", ("transposed", "nearest", "bilinear", "repeat"))
    joined = draw.one_of("joined", ("added", "concatenated"))
    channels = sizes.channels

    def init(key: jax.Array) -> Params:
        for_down, for_up, for_out = keys(key, 3)
        inputs = 2 * channels if joined == "concatenated" else channels
        return {
            "inner": _kernel(for_down, 3, channels, channels),
            "upward": _kernel(for_up, 2, channels, channels),
            "last": _kernel(for_out, 3, inputs, channels),
        }

    def apply(params: Params, x: jax.Array, context: Context) -> jax.Array:
        if down == "stride":
            inner = jax.nn.relu(convolve(x, params["inner"], stride=2))
        else:
            inner = jax.nn.relu(convolve(pooled(x, down), params["inner"]))
        inner = _enlarged(up, inner, x.shape, params["upward"])
        if joined == "concatenated":
            return convolve(jnp.concatenate([x, inner], -1), params["last"])
        return convolve(x + inner, params["last"])

    return Block(f"down and up ({down}, {up})", init, apply)


def pooled(x: jax.Array, kind: str) -> jax.Array:
    """Pools windows of two by two pixels."""
    window = (1, 2, 2, 1)
    if kind == "max pooling":
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "SAME")
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, window, window, "SAME") / 4


def _enlarged(up: str, x: jax.Array, shape: tuple[int, ...], weights: jax.Array) -> jax.Array:
    if up == "transposed":
        enlarged = jax.lax.conv_transpose(
            x, weights.astype(x.dtype), (2, 2), "SAME", dimension_numbers=_LAYOUT
        )
        return enlarged[:, : shape[1], : shape[2]]
    if up == "repeat":
        enlarged = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
        return enlarged[:, : shape[1], : shape[2]]
    return jax.image.resize(x, (x.shape[0], *shape[1:3], x.shape[3]), up)
