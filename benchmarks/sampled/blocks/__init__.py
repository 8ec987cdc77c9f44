"""The blocks of random models, by name, with their weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.sampled.blocks.attention import draw_attention, draw_cross_attention
from benchmarks.sampled.blocks.block import Block
from benchmarks.sampled.blocks.images import (
    draw_depthwise,
    draw_hourglass,
    draw_residual_convolutions,
)
from benchmarks.sampled.blocks.libraries import draw_equinox, draw_linen, draw_nnx
from benchmarks.sampled.blocks.mixing import (
    draw_convolution_1d,
    draw_fourier,
    draw_position_mixer,
)
from benchmarks.sampled.blocks.perceptrons import draw_experts, draw_mlp, draw_routed_depth
from benchmarks.sampled.blocks.recurrences import draw_gated_recurrence, draw_linear_recurrence
from benchmarks.sampled.drawing import Drawing
from benchmarks.sampled.sizes import Sizes

__all__ = ["CROSS_ATTENTION", "IMAGE_BLOCKS", "SEQUENCE_BLOCKS", "Block", "Kind", "draw_block"]


@dataclass(frozen=True)
class Kind:
    """A kind of block: the function that draws it, and its weight relative to the other kinds."""

    draw: Callable[[Drawing, Sizes], Block]
    weight: float


SEQUENCE_BLOCKS: Mapping[str, Kind] = {
    "attention": Kind(draw_attention, 5),
    "mlp": Kind(draw_mlp, 4),
    "experts": Kind(draw_experts, 2),
    "routed depth": Kind(draw_routed_depth, 1),
    "gated recurrence": Kind(draw_gated_recurrence, 1.5),
    "linear recurrence": Kind(draw_linear_recurrence, 2),
    "convolution 1d": Kind(draw_convolution_1d, 1.5),
    "fourier": Kind(draw_fourier, 1),
    "position mixer": Kind(draw_position_mixer, 0.7),
    "linen": Kind(draw_linen, 1),
    "nnx": Kind(draw_nnx, 0.7),
    "equinox": Kind(draw_equinox, 1),
}
IMAGE_BLOCKS: Mapping[str, Kind] = {
    "residual convolutions": Kind(draw_residual_convolutions, 3),
    "depthwise": Kind(draw_depthwise, 2),
    "hourglass": Kind(draw_hourglass, 2),
}
CROSS_ATTENTION = Kind(draw_cross_attention, 1)


def draw_block(draw: Drawing, sizes: Sizes, kinds: Mapping[str, Kind]) -> Block:
    """Draws one of the kinds by their weights, and then a block of that kind."""
    names = tuple(kinds)
    name = draw.one_of("block", names, [kinds[n].weight for n in names])
    return kinds[name].draw(draw.inside(name), sizes)
