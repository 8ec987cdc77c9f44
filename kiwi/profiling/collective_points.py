"""What is measured between devices: collectives along axes of the mesh, over a ladder of sizes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from typing import Any

from kiwi.mesh.collective_kinds import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    KINDS,
    REDUCE_SCATTER,
)
from kiwi.mesh.collectives import RECORDED_DTYPE
from kiwi.mesh.profile_entries import CollectiveEntry
from kiwi.mesh.profile_table import ProfileTable
from kiwi.profiling.measure import Bench, Timing

COLLECTIVE_BYTES = tuple(2**k for k in range(10, 27, 4))
"""The ladder of sizes, from 1 KiB to 64 MiB."""

_ITEM_BYTES = 4  # of `RECORDED_DTYPE`


@dataclass(frozen=True)
class CollectivePoint:
    """One collective: kind, mesh axes, and bytes as in `CollectiveEntry`."""

    kind: str
    axes: tuple[int, ...]
    devices: int
    bytes: int

    @property
    def key(self) -> tuple[object, ...]:
        """What the table knows it by."""
        return self.kind, self.axes, self.bytes

    @property
    def name(self) -> str:
        """For people."""
        axes = ", ".join(map(str, self.axes))
        return f"{self.kind} of {self.bytes} bytes along mesh axes {axes}"

    def measure(self, bench: Bench) -> Timing:
        """Times it in all groups of devices at once; raises as `Bench.time`."""
        import jax

        names = tuple(bench.mesh.axis_names[a] for a in self.axes)
        large, part = self.bytes // _ITEM_BYTES, self.bytes // _ITEM_BYTES // self.devices
        read = jax.ShapeDtypeStruct((part if self.kind == ALL_GATHER else large,), RECORDED_DTYPE)
        found = (part if self.kind == REDUCE_SCATTER else large,)
        result = jax.ShapeDtypeStruct(found, RECORDED_DTYPE)
        return bench.time(_body(self.kind, names, self.devices), [read], result)

    def added_to(self, table: ProfileTable, timing: Timing) -> ProfileTable:
        """The table with this as a further entry."""
        known = (self.kind, self.devices, RECORDED_DTYPE, self.bytes)
        entry = CollectiveEntry(*known, timing.seconds, timing.spread, self.axes)
        return table.with_collective(entry)


def collective_points(
    mesh_shape: Sequence[int], sizes_bytes: Sequence[int] = COLLECTIVE_BYTES
) -> Iterator[CollectivePoint]:
    """Every kind along every set of mesh axes."""
    large = [axis for axis, size in enumerate(mesh_shape) if size > 1]
    for count in range(1, len(large) + 1):
        for axes in combinations(large, count):
            devices = prod(mesh_shape[a] for a in axes)
            for kind in KINDS:
                for size in sizes_bytes:
                    # Buffers are cut into equal parts of whole items.
                    part = devices * _ITEM_BYTES
                    yield CollectivePoint(kind, axes, devices, max(1, size // part) * part)


def _body(kind: str, names: tuple[str, ...], devices: int) -> Callable[[Any], Any]:
    from jax import lax

    ring = [(k, (k + 1) % devices) for k in range(devices)]
    bodies: dict[str, Callable[[Any], Any]] = {
        ALL_GATHER: lambda x: lax.all_gather(x, names, tiled=True),
        ALL_REDUCE: lambda x: lax.psum(x, names),
        REDUCE_SCATTER: lambda x: lax.psum_scatter(x, names, tiled=True),
        ALL_TO_ALL: lambda x: lax.all_to_all(x, names, 0, 0, tiled=True),
        COLLECTIVE_PERMUTE: lambda x: lax.ppermute(x, names, ring),
    }
    return bodies[kind]
