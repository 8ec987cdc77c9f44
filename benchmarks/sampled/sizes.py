"""The sizes that models are drawn from: full ones, and tiny ones for tests."""

from dataclasses import dataclass

from benchmarks.sampled.drawing import Drawing


@dataclass(frozen=True)
class Scale:
    """Options of sizes. Some are powers of two, some are odd.

    - `least_bytes`, `most_bytes`: the range from which a device's bytes of a step are drawn; the
      batch follows from them. If they are None, the batch is `batch`.
    - `repeats`: the numbers of repetitions of a layer.
    """

    widths: tuple[int, ...]
    head_widths: tuple[int, ...]
    lengths: tuple[int, ...]
    images: tuple[int, ...]
    channels: tuple[int, ...]
    vocabularies: tuple[int, ...]
    classes: tuple[int, ...]
    experts: tuple[int, ...]
    states: tuple[int, ...]
    repeats: tuple[int, ...]
    batch: int
    least_bytes: float | None = None
    most_bytes: float | None = None


FULL = Scale(
    widths=(256, 320, 384, 512, 640, 768, 1000, 1024, 1280, 1536, 2048),
    head_widths=(32, 48, 64, 80, 128),
    lengths=(127, 128, 196, 256, 384, 512, 577, 1000, 1024, 2048),
    images=(28, 32, 48, 56, 64, 96, 112, 128),
    channels=(32, 48, 64, 96, 128, 160),
    vocabularies=(1000, 4096, 8192, 10007, 16384, 32000, 50257),
    classes=(10, 100, 128, 1000),
    experts=(4, 8, 16),
    states=(4, 8, 16),
    repeats=(1, 1, 2, 2, 3, 4),
    batch=32,
    least_bytes=10 * 2**20,
    most_bytes=20 * 2**30,
)

TINY = Scale(
    widths=(16, 20, 24, 32, 40, 48),
    head_widths=(4, 6, 8),
    lengths=(12, 15, 16, 24),
    images=(8, 12, 16),
    channels=(4, 6, 8),
    vocabularies=(50, 64, 101),
    classes=(10, 16),
    experts=(2, 4),
    states=(2, 4),
    repeats=(1, 2, 2),
    batch=8,
)


@dataclass(frozen=True)
class Sizes:
    """The sizes of one model. `length` is the length of a sequence, `image` the side of a
    square."""

    scale: Scale
    width: int
    length: int
    image: int
    channels: int
    vocabulary: int
    classes: int


def draw_sizes(draw: Drawing, scale: Scale) -> Sizes:
    """Draws one of each size."""
    return Sizes(
        scale,
        draw.one_of("width", scale.widths),
        draw.one_of("length", scale.lengths),
        draw.one_of("image", scale.images),
        draw.one_of("channels", scale.channels),
        draw.one_of("vocabulary", scale.vocabularies),
        draw.one_of("classes", scale.classes),
    )
