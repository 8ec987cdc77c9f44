"""Predicted seconds with their provenance; interpolation and extrapolation of measured ones."""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass


class Provenance(enum.Enum):
    """Where a price comes from; see `kiwi.mesh.profile_table`."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    COMPILER = "compiler"
    ANALYTIC = "analytic"


@dataclass(frozen=True)
class Price:
    """Predicted seconds, and where they come from."""

    seconds: float
    provenance: Provenance


@dataclass(frozen=True)
class LinearCost:
    """A time that grows linearly with the bytes moved."""

    latency_seconds: float
    seconds_per_byte: float

    def seconds(self, size_bytes: float) -> float:
        """The time for a buffer of `size_bytes`."""
        return self.latency_seconds + self.seconds_per_byte * size_bytes

    def __add__(self, other: "LinearCost") -> "LinearCost":
        """One after the other."""
        seconds_per_byte = self.seconds_per_byte + other.seconds_per_byte
        return LinearCost(self.latency_seconds + other.latency_seconds, seconds_per_byte)


@dataclass(frozen=True)
class Sample:
    """Sizes, the seconds measured for them, and those of the roofline."""

    point: tuple[int, ...]
    seconds: float
    roofline_seconds: float


def price_from(samples: Sequence[Sample], point: tuple[int, ...], roofline_seconds: float) -> Price:
    """The first of measured, interpolated, extrapolated and analytic that applies; interpolation is
    linear in the logarithms of size and seconds."""
    if not samples:
        return Price(roofline_seconds, Provenance.ANALYTIC)
    for sample in samples:
        if sample.point == point:
            return Price(sample.seconds, Provenance.MEASURED)
    for dim, size in enumerate(point):
        # Backwards, so that of several samples of a size the first counts.
        line = {s.point[dim]: s for s in reversed(samples) if _agree_but(dim, s.point, point)}
        below = max((each for each in line if each < size), default=None)
        above = min((each for each in line if each > size), default=None)
        if below is not None and above is not None:
            part = math.log(size / below) / math.log(above / below)
            seconds = line[below].seconds ** (1 - part) * line[above].seconds ** part
            return Price(seconds, Provenance.INTERPOLATED)
    nearest = min(samples, key=lambda s: (_distance(s.point, point), s.point))
    scale = nearest.seconds / nearest.roofline_seconds
    return Price(roofline_seconds * scale, Provenance.EXTRAPOLATED)


def _agree_but(dim: int, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return a[:dim] == b[:dim] and a[dim + 1 :] == b[dim + 1 :]


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    return sum(math.log(x / y) ** 2 for x, y in zip(a, b, strict=True))
