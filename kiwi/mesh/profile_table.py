"""Measurements of a machine, and predictions from them for other sizes.

A look-up takes the first of these that applies, and says which:

1. *measured*: an entry for the same operator, dtype and shapes;
2. *interpolated*: between two entries that enclose the query along one dimension and otherwise
   agree with it, linearly in the logarithms of size and time;
3. *extrapolated*: the roofline of the query, multiplied by the ratio of time and roofline of the
   nearest entry with the same operator and dtype;
4. *analytic*: the roofline alone, if the table has no such operator.

Collectives are looked up in the same way, by axis length and bytes, with the alpha-beta model for
the roofline.

If a compiler stated the times and no device was measured, the first three are *compiler*.

Beside matmuls, convolutions and reductions, operators are *streams* (memory traffic by bytes: small
buffers in caches are faster) and *elementwise* functions (the extra time of a kernel for applying
one once more).

A table's file is JSON with a version, checked whole when read (docs/reference/files.md). Reading it
parses JSON and nothing else.
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

    - `hardware`: the device. Its bandwidth and launch overhead are measured if it is not
      `analytic`, and its `target_config` is that of the machine.
    - `operators`, `collectives`: distinct entries; none in a table from data sheets.
    - `environment`: None for a table from data sheets.
    - `skipped`: measurements that were not possible, one sentence each.
    - `mesh_shape`: the shape of the mesh on which collectives ran.
    - `scales`: the factors by which a compiler's times were multiplied, see
      `kiwi.profiling.by_compiler`.
    - `loaded_from`: its file, or its name if it comes with Kiwi; not part of the file.

    **Raises:** `InvalidArgumentError` if entries contradict each other, or were measured nowhere.
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
        """Writes the table; raises `ProfileFileError` if the file cannot be written."""
        FORMAT.write(self._text, path)

    @classmethod
    def load(cls, path: str | Path) -> "ProfileTable":
        """Reads a file that `save` wrote.

        **Raises:** `ProfileFileError` if the file is missing, truncated, of another kind or of a
        newer version, or if a figure in it is missing or impossible. The error says which.
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
        """The table's file."""
        content = to_plain(self)
        del content["loaded_from"]
        return _text_of(content)

    def with_entry(self, entry: OperatorEntry | CollectiveEntry) -> "ProfileTable":
        """The table with one more entry."""
        if isinstance(entry, OperatorEntry):
            return replace(self, operators=(*self.operators, entry))
        return replace(self, collectives=(*self.collectives, entry))

    def operator(
        self, opcode: str, variant: str, dtype: str, shapes: Shapes, roofline_seconds: float
    ) -> Price:
        """The time of an operator on operands of these local shapes.

        `roofline_seconds` is its time by the device's rates, see `roofline`.
        """
        samples = self._samples.get(_operator_key(opcode, variant, dtype, shapes), ())
        return self._price(samples, _sizes(shapes), roofline_seconds)

    def _price(self, samples: Sequence[Sample], point: tuple[int, ...], roofline: float) -> Price:
        price = price_from(samples, point, roofline)
        return replace(price, provenance=self._provenance(price.provenance))

    def _provenance(self, provenance: Provenance) -> Provenance:
        """The provenance of a look-up: the given one in a measured table, *compiler* in a
        compiler's."""
        is_of_a_compiler = self.environment is not None and bool(self.environment.compiler)
        known = provenance is not Provenance.ANALYTIC and is_of_a_compiler
        return Provenance.COMPILER if known else provenance

    def has(self, opcode: str, variant: str, dtype: str) -> bool:
        """Whether an operator was measured in any shapes."""
        return (opcode, variant, dtype) in self._names

    @cached_property
    def _names(self) -> frozenset[tuple[str, str, str]]:
        return frozenset((e.opcode, e.variant, e.dtype) for e in self.operators)

    def elementwise(self, opcode: str, dtype: str, size: int) -> Price | None:
        """The extra time of a kernel for a function of `size` elements.

        A function without entries of its own counts as `ARITHMETIC`, and other dtypes as float32;
        None if neither was measured.
        """
        for known in ((opcode, dtype), (ARITHMETIC, dtype), (ARITHMETIC, "float32")):
            samples = self._samples.get(known)
            if samples:
                return self._remembered((*known, size), samples, size, float(size))
        return None

    def traffic(self, moved_bytes: float) -> Price:
        """The time of a kernel that only reads and writes so many bytes.

        If kernels are bound by their bytes, it is the time at the device's bandwidth: small kernels
        take no longer than that inside a step, but do so when measured alone.
        """
        size, roofline = max(1, int(moved_bytes)), self.roofline("float32", 0.0, moved_bytes)
        samples = self._samples.get((STREAM, "", STREAM_DTYPE, (1,)))
        if not samples or self.hardware.traits.is_bound_by_bytes:
            # Tables of version 1 have the bandwidth alone.
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
        """The time of a collective along axes of a mesh.

        If the table is of a mesh of that shape, what was measured along these axes counts; else
        what was measured over as many devices, the slowest axes if there are several. An axis
        length that was not measured gives `alpha_beta_seconds`, as analytic.
        """
        devices = prod(mesh_shape[axis] for axis in axes)
        samples = self._samples.get((kind, axes)) if mesh_shape == self.mesh_shape else None
        samples = samples or self._samples.get((kind, devices))
        if not samples:
            return Price(alpha_beta_seconds, Provenance.ANALYTIC)
        size_bytes = max(1, size_bytes)
        return self._price(samples, (size_bytes,), self._ring_seconds(kind, devices, size_bytes))

    def roofline(self, dtype: str, flops: float, moved_bytes: float) -> float:
        """Launch overhead plus the larger of work over rate and bytes over bandwidth."""
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
    def _samples(self) -> dict[tuple[object, ...], list[Sample]]:
        """The measurements by the keys of the look-ups above. Of the collectives over a number of
        devices, the slowest of each size counts."""
        by_key: dict[tuple[object, ...], list[Sample]] = {}
        for e in self.operators:
            sizes = _sizes(e.shapes)
            roofline_seconds = self.roofline(e.dtype, e.flops, e.bytes)
            key = _operator_key(e.opcode, e.variant, e.dtype, e.shapes)
            by_key.setdefault(key, []).append(Sample(sizes, e.seconds, roofline_seconds))
            if e.variant == ELEMENTWISE:  # extrapolated by the number of elements
                sample = Sample(sizes, e.seconds, float(sizes[0]))
                by_key.setdefault((e.opcode, e.dtype), []).append(sample)
        slowest: dict[tuple[object, ...], Sample] = {}
        for e in self.collectives:
            ring_seconds = self._ring_seconds(e.kind, e.devices, e.bytes)
            sample, key = Sample((e.bytes,), e.seconds, ring_seconds), (e.kind, e.devices, e.bytes)
            by_key.setdefault((e.kind, e.axes), []).append(sample)
            if key not in slowest or e.seconds > slowest[key].seconds:
                slowest[key] = sample
        for (kind, devices, _), sample in slowest.items():
            by_key.setdefault((kind, devices), []).append(sample)
        return by_key


def _operator_key(
    opcode: str, variant: str, dtype: str, shapes: Shapes
) -> tuple[str, str, str, tuple[int, ...]]:
    """Extrapolation is along sizes, so that the numbers of dimensions have to agree."""
    return opcode, variant, dtype, tuple(map(len, shapes))


def _sizes(shapes: Shapes) -> tuple[int, ...]:
    return tuple(size for shape in shapes for size in shape)


def _text_of(content: Mapping[str, Any]) -> bytes:
    """JSON with a line for each entry of a list, so that tables can be read and compared."""
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
    """The input of `_text_of`, of this version or an older one; raises `ProfileFileError` if the
    file is missing, truncated, of another kind, of a newer version, or lacks a part."""
    content = FORMAT.read(path)
    if content["version"] == 1:  # Collectives did not name their axes then.
        content["mesh_shape"] = []
    del content["format"], content["version"]
    missing = [part for part in _PARTS if part not in content]
    if missing:
        raise FORMAT.invalid(str(path), f"The table lacks {', '.join(missing)}.")
    return content
