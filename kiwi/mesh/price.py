"""Predicted seconds with their provenance; interpolation and extrapolation of measured ones."""

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class Provenance(enum.Enum):
    """Where a price comes from; see `kiwi.mesh.profile_table`."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    ANALYTIC = "analytic"


@dataclass(frozen=True)
class Price:
    """Predicted seconds, and where they come from."""

    seconds: float
    provenance: Provenance


@dataclass(frozen=True)
class Sample:
    """Sizes, the seconds measured for them, and those of the roofline."""

    point: tuple[int, ...]
    seconds: float
    roofline_seconds: float


def price_from(samples: Sequence[Sample], point: tuple[int, ...], roofline_seconds: float) -> Price:
    """The first of measured, interpolated, extrapolated and analytic that applies."""
    if not samples:
        return Price(roofline_seconds, Provenance.ANALYTIC)
    for sample in samples:
        if sample.point == point:
            return Price(sample.seconds, Provenance.MEASURED)
    for dim in range(len(point)):
        line = [s for s in samples if _agree_but(dim, s.point, point)]
        below = max((s for s in line if s.point[dim] < point[dim]), key=_size(dim), default=None)
        above = min((s for s in line if s.point[dim] > point[dim]), key=_size(dim), default=None)
        if below is not None and above is not None:
            seconds = _between(below, above, dim, point[dim])
            return Price(seconds, Provenance.INTERPOLATED)
    nearest = min(samples, key=lambda s: (_distance(s.point, point), s.point))
    scale = nearest.seconds / nearest.roofline_seconds
    return Price(roofline_seconds * scale, Provenance.EXTRAPOLATED)


def _agree_but(dim: int, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return a[:dim] == b[:dim] and a[dim + 1 :] == b[dim + 1 :]


def _size(dim: int) -> Callable[[Sample], int]:
    return lambda sample: sample.point[dim]


def _between(below: Sample, above: Sample, dim: int, size: int) -> float:
    """Linear in the logarithms of size and seconds."""
    span = math.log(above.point[dim] / below.point[dim])
    part = math.log(size / below.point[dim]) / span
    return below.seconds ** (1 - part) * above.seconds**part


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    return sum(math.log(x / y) ** 2 for x, y in zip(a, b, strict=True))
