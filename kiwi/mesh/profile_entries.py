"""The entries of a profile table: measured operators and collectives; and prices.

A price is predicted seconds with their provenance: interpolated or extrapolated measured ones.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from kiwi.errors import InvalidArgumentError
from kiwi.mesh.collective_kinds import KINDS
from kiwi.messages import topics


class Provenance(enum.Enum):
    """The provenance of a price; see `kiwi.mesh.profile_table`."""

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
    """The price by the first applicable of measured, interpolated, extrapolated and analytic.
    Interpolation is linear in the logarithms of size and seconds."""
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


Shapes = tuple[tuple[int, ...], ...]
"""The local shapes of an operator's operands."""

ELEMENTWISE = "elementwise"
"""The variant of entries that measure the extra cost of applying a function once more in
a kernel."""

ARITHMETIC = "mul"
"""The elementwise opcode that stands for all functions that a vector unit computes in a cycle or
two."""

STREAM, STREAM_DTYPE = "stream", "uint8"
"""The opcode of memory traffic; its one shape is the number of bytes read plus written."""


@dataclass(frozen=True)
class OperatorEntry:
    """A measured operator on one device.

    - `opcode`: the operator; `variant`: what else distinguishes it, such as "bij,bjk->bik".
    - `dtype`: of its operands; `shapes`: theirs, on one device.
    - `flops`, `bytes`: its work, and the bytes that it reads and writes; for the roofline.
    - `seconds`: median; `spread`: half the interquartile range over the median.

    **Raises:** `InvalidArgumentError` for a figure that no measurement gives.
    """

    opcode: str
    variant: str
    dtype: str
    shapes: Shapes
    flops: float
    bytes: int
    seconds: float
    spread: float

    @property
    def key(self) -> tuple[object, ...]:
        """The key that is unique in a table."""
        return self.opcode, self.variant, self.dtype, self.shapes

    def __post_init__(self) -> None:
        _check_time(f"{self.opcode} {self.shapes}", self.seconds, self.spread)
        if any(size < 1 for shape in self.shapes for size in shape):
            raise InvalidArgumentError(
                f"{self.opcode} has the empty shapes {self.shapes}.", topic=topics.MEASUREMENT
            )
        if not 0 <= self.flops < math.inf or self.bytes < 0 or not (self.flops or self.bytes):
            raise InvalidArgumentError(
                f"{self.opcode} {self.shapes} neither computes nor moves anything: "
                f"flops={self.flops}, bytes={self.bytes}.",
                topic=topics.MEASUREMENT,
            )


@dataclass(frozen=True)
class CollectiveEntry:
    """A measured collective along one axis.

    - `kind`: one of `kiwi.mesh.KINDS`; `devices`: the axis length; `dtype`: of what is moved.
    - `axes`: the axes of the table's mesh that it ran along; empty if unknown.
    - `bytes`: the larger buffer of one device, as in `kiwi.mesh.collectives`.
    - `seconds`, `spread`: as of `OperatorEntry`.

    **Raises:** `InvalidArgumentError` for a figure that no measurement gives.
    """

    kind: str
    devices: int
    dtype: str
    bytes: int
    seconds: float
    spread: float
    axes: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """The key that is unique in a table."""
        return self.kind, self.devices, self.dtype, self.bytes, self.axes

    def __post_init__(self) -> None:
        _check_time(f"{self.kind} of {self.bytes} bytes", self.seconds, self.spread)
        if self.kind not in KINDS:
            raise InvalidArgumentError(
                f"{self.kind!r} is not a collective.", topic=topics.MEASUREMENT
            )
        if self.devices < 2 or self.bytes < 1:
            raise InvalidArgumentError(
                f"{self.kind} of {self.bytes} bytes over {self.devices} devices moves nothing.",
                topic=topics.MEASUREMENT,
            )


@dataclass(frozen=True)
class Environment:
    """The machine and the software that recorded a table.

    - `date`: as YYYY-MM-DD.
    - `compiler`: the one that stated the times of the table, and its version; empty where they
      were measured on a `device` by its `driver`.
    """

    device: str
    jax: str
    driver: str
    date: str
    compiler: str = ""


def _check_time(what: str, seconds: float, spread: float) -> None:
    if not 0 < seconds < math.inf:
        raise InvalidArgumentError(
            f"{what} cannot take {seconds} seconds.", topic=topics.MEASUREMENT
        )
    if not 0 <= spread < math.inf:
        raise InvalidArgumentError(
            f"{what} cannot have a spread of {spread}.", topic=topics.MEASUREMENT
        )
