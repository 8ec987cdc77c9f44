"""What was measured on a machine, and what follows from it for sizes that were not.

A look-up takes the first of these that applies, and says which:

1. *measured*: an entry for the same operator, dtype and shapes;
2. *interpolated*: along the one dimension in which two entries enclose the query and otherwise
   agree with it, linearly in the logarithms of size and time;
3. *extrapolated*: the roofline of the query, scaled by what the nearest entry of the same
   operator and dtype took over its own roofline;
4. *analytic*: the roofline alone, where the table has no such operator. The same holds of
   collectives, by axis length and bytes, with the alpha-beta model for the roofline.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kiwi.errors import InvalidArgumentError
from kiwi.mesh.collectives import COLLECTIVE_PERMUTE, KINDS
from kiwi.mesh.hardware import Hardware
from kiwi.mesh.price import Price, Provenance

Shapes = tuple[tuple[int, ...], ...]
"""The local shapes of an operator's operands."""


@dataclass(frozen=True)
class OperatorEntry:
    """An operator on one device, as measured.

    - `opcode`: the operator; `variant`: what else distinguishes it, such as "bij,bjk->bik".
    - `dtype`: of its operands; `shapes`: theirs, on one device.
    - `flops`, `bytes`: its work, and what it reads and writes; for the roofline.
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

    def __post_init__(self) -> None:
        _check_time(f"{self.opcode} {self.shapes}", self.seconds, self.spread)
        if any(size < 1 for shape in self.shapes for size in shape):
            raise InvalidArgumentError(f"{self.opcode} has the empty shapes {self.shapes}.")
        if not 0 <= self.flops < math.inf or self.bytes < 0 or not (self.flops or self.bytes):
            raise InvalidArgumentError(
                f"{self.opcode} {self.shapes} neither computes nor moves anything: "
                f"flops={self.flops}, bytes={self.bytes}."
            )


@dataclass(frozen=True)
class CollectiveEntry:
    """A collective along one axis, as measured.

    - `kind`: one of `kiwi.mesh.KINDS`; `devices`: the axis length; `dtype`: of what is moved.
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

    def __post_init__(self) -> None:
        _check_time(f"{self.kind} of {self.bytes} bytes", self.seconds, self.spread)
        if self.kind not in KINDS:
            raise InvalidArgumentError(f"{self.kind!r} is not a collective.")
        if self.devices < 2 or self.bytes < 1:
            raise InvalidArgumentError(
                f"{self.kind} of {self.bytes} bytes over {self.devices} devices moves nothing."
            )


@dataclass(frozen=True)
class Environment:
    """Where and with what a table was recorded; `date` as YYYY-MM-DD."""

    device: str
    jax: str
    driver: str
    date: str


@dataclass(frozen=True)
class ProfileTable:
    """A device with what was measured on it.

    - `hardware`: the device; its bandwidth and launch overhead are measured if it is not
      `analytic`, and its `target_config` is that of the machine.
    - `operators`, `collectives`: distinct entries; none of both in a table from data sheets.
    - `environment`: None for a table from data sheets.
    - `skipped`: what could not be measured, one sentence each.

    **Raises:** `InvalidArgumentError` if entries contradict each other, or were measured
    nowhere.
    """

    hardware: Hardware
    operators: tuple[OperatorEntry, ...] = ()
    collectives: tuple[CollectiveEntry, ...] = ()
    environment: Environment | None = None
    skipped: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        _check_distinct((e.opcode, e.variant, e.dtype, e.shapes) for e in self.operators)
        _check_distinct((e.kind, e.devices, e.dtype, e.bytes) for e in self.collectives)
        if self.environment is None and (self.operators or self.collectives):
            raise InvalidArgumentError(
                f"The table of {self.hardware.name!r} has measurements, but no environment."
            )

    def save(self, path: str | Path) -> None:
        """Writes the table, see `kiwi.mesh.profile_file`.

        **Raises:** `ProfileFileError` if the file cannot be written.
        """
        from kiwi.mesh.profile_file import save_table

        save_table(self, path)

    @classmethod
    def load(cls, path: str | Path) -> "ProfileTable":
        """Reads what `save` wrote.

        **Raises:** `ProfileFileError` if the file is missing, truncated, of another kind or of a
        newer version, or if a figure in it is missing or impossible; it says which.
        """
        from kiwi.mesh.profile_file import load_table

        return load_table(path)

    def operator(
        self, opcode: str, variant: str, dtype: str, shapes: Shapes, roofline_seconds: float
    ) -> Price:
        """The time of an operator on operands of these local shapes.

        `roofline_seconds` is what it takes by the device's rates, see `roofline`.
        """
        key = (opcode, variant, dtype, tuple(map(len, shapes)))
        return _price(self._operators.get(key, ()), _sizes(shapes), roofline_seconds)

    def collective(
        self, kind: str, devices: int, dtype: str, size_bytes: int, alpha_beta_seconds: float
    ) -> Price:
        """The time of a collective along an axis of `devices`.

        An axis length that was not measured gives `alpha_beta_seconds`, as analytic.
        """
        samples = self._collectives.get((kind, devices, dtype), ())
        size_bytes = max(1, size_bytes)
        ring_seconds = self._ring_seconds(kind, devices, size_bytes)
        found = _price(samples, (size_bytes,), ring_seconds)
        if found.provenance is Provenance.ANALYTIC:
            return Price(alpha_beta_seconds, Provenance.ANALYTIC)
        return found

    def roofline(self, dtype: str, flops: float, moved_bytes: float) -> float:
        """Launch overhead and the larger of work over rate and bytes over bandwidth."""
        work = flops / self.hardware.matmul_flops_per_second(dtype)
        moved = moved_bytes / self.hardware.sustained_memory_bytes_per_second
        return self.hardware.kernel_launch_seconds + max(work, moved)

    def _ring_seconds(self, kind: str, devices: int, size_bytes: int) -> float:
        """The alpha-beta model inside a node; twice that of an all-reduce cancels when scaled."""
        link = self.hardware.intra_link
        hops = 1 if kind == COLLECTIVE_PERMUTE else devices - 1
        part = 1.0 if kind == COLLECTIVE_PERMUTE else hops / devices
        return hops * link.latency_seconds + part * size_bytes / link.sustained_bytes_per_second

    @cached_property
    def _operators(self) -> dict[tuple[str, str, str, tuple[int, ...]], list["_Sample"]]:
        """By opcode, variant, dtype and ranks of the operands."""
        found: dict[tuple[str, str, str, tuple[int, ...]], list[_Sample]] = {}
        for e in self.operators:
            key = (e.opcode, e.variant, e.dtype, tuple(map(len, e.shapes)))
            roofline = self.roofline(e.dtype, e.flops, e.bytes)
            found.setdefault(key, []).append(_Sample(_sizes(e.shapes), e.seconds, roofline))
        return found

    @cached_property
    def _collectives(self) -> dict[tuple[str, int, str], list["_Sample"]]:
        found: dict[tuple[str, int, str], list[_Sample]] = {}
        for e in self.collectives:
            ring = self._ring_seconds(e.kind, e.devices, e.bytes)
            sample = _Sample((e.bytes,), e.seconds, ring)
            found.setdefault((e.kind, e.devices, e.dtype), []).append(sample)
        return found


@dataclass(frozen=True)
class _Sample:
    """Sizes, the seconds measured for them, and those of the roofline."""

    point: tuple[int, ...]
    seconds: float
    roofline_seconds: float


def _sizes(shapes: Shapes) -> tuple[int, ...]:
    return tuple(size for shape in shapes for size in shape)


def _price(samples: Sequence[_Sample], point: tuple[int, ...], roofline_seconds: float) -> Price:
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


def _size(dim: int) -> Callable[[_Sample], int]:
    return lambda sample: sample.point[dim]


def _between(below: _Sample, above: _Sample, dim: int, size: int) -> float:
    """Linear in the logarithms of size and seconds."""
    span = math.log(above.point[dim] / below.point[dim])
    part = math.log(size / below.point[dim]) / span
    return below.seconds ** (1 - part) * above.seconds**part


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> float:
    return sum(math.log(x / y) ** 2 for x, y in zip(a, b, strict=True))


def _check_time(what: str, seconds: float, spread: float) -> None:
    if not 0 < seconds < math.inf:
        raise InvalidArgumentError(f"{what} cannot take {seconds} seconds.")
    if not 0 <= spread < math.inf:
        raise InvalidArgumentError(f"{what} cannot have a spread of {spread}.")


def _check_distinct(keys: Iterable[tuple[object, ...]]) -> None:
    seen: set[tuple[object, ...]] = set()
    for key in keys:
        if key in seen:
            raise InvalidArgumentError(f"Two entries measure the same: {key}.")
        seen.add(key)
