"""Measurements of a machine, and predictions from them for other sizes.

A look-up returns the first of these prices that applies, with its provenance:

1. *measured*: the time of an entry for the same operator, dtype and shapes;
2. *interpolated*: between two entries that enclose the query along one dimension and otherwise
   agree with it, linear in the logarithms of size and time;
3. *extrapolated*: the roofline of the query, times the ratio of time and roofline of the nearest
   entry with the same operator and dtype;
4. *analytic*: the roofline alone, if the table has no such operator.

Collectives are looked up in the same way, by the number of devices and bytes. The alpha-beta model
replaces the roofline.

If a compiler stated the times and no device was measured, the first three have the provenance
*compiler*.

Entries of operators are matmuls, convolutions, reductions, *streams* and *elementwise* functions. A
stream is memory traffic by bytes, which is faster for small buffers in caches. The time of an
elementwise function is the extra time of a kernel for applying it once more.

A table's file is JSON with a version (docs/reference/files.md). It is checked as a whole when it is
read, and reading it runs no code from it.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from kiwi.codec import from_plain, to_plain
from kiwi.errors import InvalidArgumentError, ProfileFileError
from kiwi.json_file import FileFormat
from kiwi.mesh.collective_kinds import COLLECTIVE_PERMUTE
from kiwi.mesh.hardware import Hardware
from kiwi.mesh.profile_entries import (
    ARITHMETIC,
    ELEMENTWISE,
    STREAM,
    STREAM_DTYPE,
    CollectiveEntry,
    Environment,
    OperatorEntry,
    Price,
    Provenance,
    Sample,
    Shapes,
    price_from,
)
from kiwi.messages import topics

FORMAT = FileFormat(
    "kiwi-profile",
    3,
    "profile",
    ProfileFileError,
    ending="}",
    again="Write the table again with ProfileTable.save.",
)

_PARTS = ("hardware", "operators", "collectives", "environment", "skipped", "mesh_shape")


@dataclass(frozen=True)
class ProfileTable:
    """A device with its measurements.

    - `hardware`: the device. If it is not `analytic`, its bandwidth and launch overhead are
      measured, and its `target_config` describes the machine.
    - `operators`, `collectives`: entries with distinct keys; none in a table from data sheets.
    - `environment`: the machine and software; None for a table from data sheets.
    - `skipped`: measurements that were not possible, one sentence each.
    - `mesh_shape`: the shape of the mesh on which the collectives ran.
    - `scales`: the factors by which a compiler's times were multiplied, see
      `kiwi.profiling.by_compiler`.
    - `loaded_from`: the table's path, or its name if it comes with Kiwi. The file does not contain
      it.

    **Raises:** `InvalidArgumentError` if two entries have the same key, or if there are entries but
    no environment.
    """

    hardware: Hardware
    operators: tuple[OperatorEntry, ...] = ()
    collectives: tuple[CollectiveEntry, ...] = ()
    environment: Environment | None = None
    skipped: tuple[str, ...] = field(default=())
    mesh_shape: tuple[int, ...] = ()
    scales: Mapping[str, float] = field(default_factory=dict)
    loaded_from: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        keys = Counter(entry.key for entry in (*self.operators, *self.collectives))
        for key, count in keys.items():
            if count > 1:
                raise InvalidArgumentError(
                    f"Two entries measure the same: {key}.", topic=topics.MEASUREMENT
                )
        if self.environment is None and (self.operators or self.collectives):
            raise InvalidArgumentError(
                f"The table of {self.hardware.name!r} has measurements, but no environment.",
                topic=topics.MEASUREMENT,
            )

    def save(self, path: str | Path) -> None:
        """Writes the table.

        **Raises:** `ProfileFileError` if the file cannot be written.
        """
        FORMAT.write(self._text, path)

    @classmethod
    def load(cls, path: str | Path) -> "ProfileTable":
        """Reads a file that `save` wrote.

        **Raises:** `ProfileFileError` if the file is missing, truncated, of another kind or of a
        newer version, or if a figure in it is missing or impossible. The message names the fault.
        """
        try:
            return from_plain({**_read_content(path), "loaded_from": str(path)}, cls)
        except InvalidArgumentError as error:
            raise FORMAT.invalid(str(path), error.what) from error

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the table's file."""
        return hashlib.sha256(self._text).hexdigest()

    @property
    def _text(self) -> bytes:
        """The content of the table's file."""
        content = to_plain(self)
        del content["loaded_from"]
        return _text_of(content)

    def with_entry(self, entry: OperatorEntry | CollectiveEntry) -> "ProfileTable":
        """Returns the table with one more entry."""
        if isinstance(entry, OperatorEntry):
            return replace(self, operators=(*self.operators, entry))
        return replace(self, collectives=(*self.collectives, entry))

    def operator(
        self, opcode: str, variant: str, dtype: str, shapes: Shapes, roofline_seconds: float
    ) -> Price:
        """Returns the time of an operator on operands of these local shapes.

        - `roofline_seconds`: the operator's time by the device's rates, see `roofline`.
        """
        samples = self._samples.get(_operator_key(opcode, variant, dtype, shapes), ())
        return self._price(samples, _sizes(shapes), roofline_seconds)

    def _price(self, samples: Sequence[Sample], point: tuple[int, ...], roofline: float) -> Price:
        price = price_from(samples, point, roofline)
        return replace(price, provenance=self._provenance(price.provenance))

    def _provenance(self, provenance: Provenance) -> Provenance:
        """Returns the provenance of a look-up: *compiler* instead of measured, interpolated or
        extrapolated if a compiler stated the times."""
        is_of_a_compiler = self.environment is not None and bool(self.environment.compiler)
        is_stated = provenance is not Provenance.ANALYTIC and is_of_a_compiler
        return Provenance.COMPILER if is_stated else provenance

    def has(self, opcode: str, variant: str, dtype: str) -> bool:
        """Whether the table has an operator in any shapes."""
        return (opcode, variant, dtype) in self._names

    @cached_property
    def _names(self) -> frozenset[tuple[str, str, str]]:
        return frozenset((entry.opcode, entry.variant, entry.dtype) for entry in self.operators)

    def elementwise(self, opcode: str, dtype: str, size: int) -> Price | None:
        """Returns the extra time of a kernel for a function of `size` elements.

        A function without its own entries counts as `ARITHMETIC`, and a dtype without entries as
        float32. Returns None if the table has none of these.
        """
        for function in ((opcode, dtype), (ARITHMETIC, dtype), (ARITHMETIC, "float32")):
            samples = self._samples.get(function)
            if samples:
                return self._remembered((*function, size), samples, size, float(size))
        return None

    def traffic(self, moved_bytes: float) -> Price:
        """Returns the time of a kernel that only reads and writes `moved_bytes` in all.

        If kernels are bound by their bytes, it is the time at the device's bandwidth. Measured
        alone, small kernels take longer than they do inside a step.
        """
        size, roofline = max(1, int(moved_bytes)), self.roofline("float32", 0.0, moved_bytes)
        samples = self._samples.get((STREAM, "", STREAM_DTYPE, (1,)))
        if not samples or self.hardware.traits.is_bound_by_bytes:
            # Tables of version 1 have only the bandwidth.
            if self.hardware.analytic:
                return Price(roofline, Provenance.ANALYTIC)
            return Price(roofline, self._provenance(Provenance.EXTRAPOLATED))
        return self._remembered((STREAM, size), samples, size, roofline)

    def _remembered(
        self, key: tuple[object, ...], samples: list[Sample], size: int, roofline: float
    ) -> Price:
        # Thousands of options of a problem ask for the same few sizes.
        if key not in self._memory:
            self._memory[key] = self._price(samples, (size,), roofline)
        return self._memory[key]

    @cached_property
    def _memory(self) -> dict[tuple[object, ...], Price]:
        return {}

    def collective(
        self,
        kind: str,
        axes: tuple[int, ...],
        mesh_shape: tuple[int, ...],
        size_bytes: int,
        alpha_beta_seconds: float,
    ) -> Price:
        """Returns the time of a collective along axes of a mesh.

        - `alpha_beta_seconds`: the time by the alpha-beta model.

        Measurements along the same axes of a mesh of the same shape count first. Otherwise the
        measurements over as many devices count, along the slowest axes if there are several.
        Without either, the price is `alpha_beta_seconds`, as analytic.
        """
        devices = prod(mesh_shape[axis] for axis in axes)
        samples = self._samples.get((kind, axes)) if mesh_shape == self.mesh_shape else None
        samples = samples or self._samples.get((kind, devices))
        if not samples:
            return Price(alpha_beta_seconds, Provenance.ANALYTIC)
        size_bytes = max(1, size_bytes)
        return self._price(samples, (size_bytes,), self._ring_seconds(kind, devices, size_bytes))

    def roofline(self, dtype: str, flops: float, moved_bytes: float) -> float:
        """Returns the seconds by the roofline: the launch overhead plus the larger of work over the
        matmul rate and bytes over bandwidth."""
        work = flops / self.hardware.matmul_flops_per_second(dtype)
        moved = moved_bytes / self.hardware.sustained_memory_bytes_per_second
        return self.hardware.kernel_launch_seconds + max(work, moved)

    def _ring_seconds(self, kind: str, devices: int, size_bytes: int) -> float:
        """Returns the seconds by the alpha-beta model inside a node. The factor 2 of an all-reduce
        is left out, since it cancels in the ratio of an extrapolation."""
        link = self.hardware.intra_link
        hops = 1 if kind == COLLECTIVE_PERMUTE else devices - 1
        part = 1.0 if kind == COLLECTIVE_PERMUTE else hops / devices
        return hops * link.latency_seconds + part * size_bytes / link.sustained_bytes_per_second

    @cached_property
    def _samples(self) -> dict[tuple[object, ...], list[Sample]]:
        """The measurements by the keys of the look-ups. Among the collectives over as many devices,
        the slowest of each size counts."""
        by_key: dict[tuple[object, ...], list[Sample]] = {}
        for entry in self.operators:
            sizes = _sizes(entry.shapes)
            roofline_seconds = self.roofline(entry.dtype, entry.flops, entry.bytes)
            key = _operator_key(entry.opcode, entry.variant, entry.dtype, entry.shapes)
            by_key.setdefault(key, []).append(Sample(sizes, entry.seconds, roofline_seconds))
            if entry.variant == ELEMENTWISE:  # The number of elements replaces the roofline.
                sample = Sample(sizes, entry.seconds, float(sizes[0]))
                by_key.setdefault((entry.opcode, entry.dtype), []).append(sample)
        slowest: dict[tuple[object, ...], Sample] = {}
        for entry in self.collectives:
            ring_seconds = self._ring_seconds(entry.kind, entry.devices, entry.bytes)
            sample, key = (
                Sample((entry.bytes,), entry.seconds, ring_seconds),
                (entry.kind, entry.devices, entry.bytes),
            )
            by_key.setdefault((entry.kind, entry.axes), []).append(sample)
            if key not in slowest or entry.seconds > slowest[key].seconds:
                slowest[key] = sample
        for (kind, devices, _), sample in slowest.items():
            by_key.setdefault((kind, devices), []).append(sample)
        return by_key


def _operator_key(
    opcode: str, variant: str, dtype: str, shapes: Shapes
) -> tuple[str, str, str, tuple[int, ...]]:
    """Returns the key of an operator's samples. It includes the ranks, since extrapolation compares
    sizes of equal ranks."""
    return opcode, variant, dtype, tuple(map(len, shapes))


def _sizes(shapes: Shapes) -> tuple[int, ...]:
    return tuple(size for shape in shapes for size in shape)


def _text_of(content: Mapping[str, Any]) -> bytes:
    """Returns the content as JSON with a line for each entry of a list, which can be read and
    compared."""
    parts = []
    for key, value in {"format": FORMAT.name, "version": FORMAT.version, **content}.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list) and value:
            rows = ",\n  ".join(json.dumps(entry, allow_nan=False) for entry in value)
            text = f"[\n  {rows}\n ]"
        elif isinstance(value, Mapping):
            text = json.dumps(value, indent=1, allow_nan=False).replace("\n", "\n ")
        parts.append(f' "{key}": {text}')
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def _read_content(path: str | Path) -> dict[str, Any]:
    """Reads a file of this version or an older one. Returns the input of `_text_of`.

    **Raises:** `ProfileFileError` if the file is missing, truncated, of another kind or of a newer
    version, or lacks a part.
    """
    content = FORMAT.read(path)
    if content["version"] == 1:  # Its collectives do not name their axes.
        content["mesh_shape"] = []
    del content["format"], content["version"]
    missing = [part for part in _PARTS if part not in content]
    if missing:
        raise FORMAT.invalid(str(path), f"The table lacks {', '.join(missing)}.")
    return content
