"""The entries of a profile table (measured operators and collectives), and prices.

A price is a predicted time with its provenance.
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
    """A predicted time with its provenance."""

    seconds: float
    provenance: Provenance


@dataclass(frozen=True)
class LinearCost:
    """A time that grows linearly with the bytes moved."""

    latency_seconds: float
    seconds_per_byte: float

    def seconds(self, size_bytes: float) -> float:
        """Returns the time for a buffer of `size_bytes`."""
        return self.latency_seconds + self.seconds_per_byte * size_bytes

    def __add__(self, other: "LinearCost") -> "LinearCost":
        """Returns the cost of both, one after the other."""
        seconds_per_byte = self.seconds_per_byte + other.seconds_per_byte
        return LinearCost(self.latency_seconds + other.latency_seconds, seconds_per_byte)


@dataclass(frozen=True)
class Sample:
    """A measurement: the sizes, the seconds measured, and the seconds by the roofline."""

    point: tuple[int, ...]
    seconds: float
    roofline_seconds: float


def price_from(samples: Sequence[Sample], point: tuple[int, ...], roofline_seconds: float) -> Price:
    """Returns the price for the sizes `point`: measured, interpolated, extrapolated or analytic,
    the first of these that applies (see `kiwi.mesh.profile_table`).

    - `roofline_seconds`: the time by the roofline.
    """
    if not samples:
        return Price(roofline_seconds, Provenance.ANALYTIC)
    for sample in samples:
        if sample.point == point:
            return Price(sample.seconds, Provenance.MEASURED)
    for dim, size in enumerate(point):
        # The first of several samples of a size counts: in reverse, it is written last.
        line = {
            entry.point[dim]: entry
            for entry in reversed(samples)
            if _agree_but(dim, entry.point, point)
        }
        below = max((known_size for known_size in line if known_size < size), default=None)
        above = min((known_size for known_size in line if known_size > size), default=None)
        if below is not None and above is not None:
            part = math.log(size / below) / math.log(above / below)
            seconds = line[below].seconds ** (1 - part) * line[above].seconds ** part
            return Price(seconds, Provenance.INTERPOLATED)
    nearest = min(samples, key=lambda entry: (_distance(entry.point, point), entry.point))
    scale = nearest.seconds / nearest.roofline_seconds
    return Price(roofline_seconds * scale, Provenance.EXTRAPOLATED)


def _agree_but(dim: int, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return a[:dim] == b[:dim] and a[dim + 1 :] == b[dim + 1 :]


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    return sum(math.log(x / y) ** 2 for x, y in zip(a, b, strict=True))


Shapes = tuple[tuple[int, ...], ...]
"""The local shapes of an operator's operands."""

ELEMENTWISE = "elementwise"
"""The variant of entries that measure the extra time of a kernel for applying a function once
more."""

ARITHMETIC = "mul"
"""The elementwise opcode that represents all functions that a vector unit computes in a cycle or
two. Functions without entries of their own are priced by it."""

STREAM, STREAM_DTYPE = "stream", "uint8"
"""The opcode and dtype of entries for memory traffic. Their one shape is the number of bytes read
plus written."""


@dataclass(frozen=True)
class OperatorEntry:
    """A measured operator on one device.

    - `opcode`: the operator. `variant`: a further distinction, such as "bij,bjk->bik".
    - `dtype`, `shapes`: the dtype and the local shapes of the operands.
    - `flops`, `bytes`: the work, and the bytes read and written, for the roofline.
    - `seconds`: the median. `spread`: half the interquartile range, divided by the median.

    **Raises:** `InvalidArgumentError` for a figure that no measurement can give.
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

    - `kind`: one of `kiwi.mesh.KINDS`. `devices`: the number of devices along the axes.
    - `dtype`: the dtype of the buffer.
    - `axes`: the axes of the table's mesh along which the collective ran; empty if unknown.
    - `bytes`: the larger buffer of one device, as in `kiwi.mesh.collectives`.
    - `seconds`, `spread`: as in `OperatorEntry`.

    **Raises:** `InvalidArgumentError` for a figure that no measurement can give.
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

    - `device`, `jax`, `driver`: the device's name, and the versions of JAX and of the driver.
    - `date`: as YYYY-MM-DD.
    - `compiler`: the name and version of the compiler that stated the times of the table; empty if
      they were measured on the device.
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
