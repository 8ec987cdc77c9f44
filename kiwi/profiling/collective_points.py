"""What is measured between devices: collectives along axes of the mesh, over a ladder of sizes."""

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from math import prod
from typing import Any

import jax
from jax import lax

from kiwi.mesh import collective_kinds as kinds
from kiwi.mesh.collectives import RECORDED_DTYPE
from kiwi.mesh.profile_entries import CollectiveEntry
from kiwi.profiling.measure import UNMEASURED, Bench, Point, Timing

COLLECTIVE_BYTES = tuple(2**k for k in range(10, 27, 4))
"""The ladder of sizes, from 1 KiB to 64 MiB."""

_ITEM_BYTES = 4  # of `RECORDED_DTYPE`


def collective_points(
    mesh_shape: Sequence[int], sizes_bytes: Sequence[int] = COLLECTIVE_BYTES
) -> Iterator[Point]:
    """Every kind along every set of mesh axes."""
    large = [axis for axis, size in enumerate(mesh_shape) if size > 1]
    for count in range(1, len(large) + 1):
        for axes in combinations(large, count):
            devices = prod(mesh_shape[a] for a in axes)
            # Buffers are cut into equal parts of whole items.
            part = devices * _ITEM_BYTES
            for kind in kinds.KINDS:
                for size in sizes_bytes:
                    yield _point(kind, axes, devices, max(1, size // part) * part)


def _point(kind: str, axes: tuple[int, ...], devices: int, size_bytes: int) -> Point:
    entry = CollectiveEntry(kind, devices, RECORDED_DTYPE, size_bytes, *UNMEASURED, axes)
    name = f"{kind} of {size_bytes} bytes along mesh axes {', '.join(map(str, axes))}"
    return Point(entry, name, size_bytes, functools.partial(time_collective, entry))


def time_collective(entry: CollectiveEntry, bench: Bench) -> Timing:
    """Times a collective in all groups of devices at once; raises as `Bench.time`."""
    names = tuple(bench.mesh.axis_names[a] for a in entry.axes)
    large = entry.bytes // _ITEM_BYTES
    part = large // entry.devices
    read, found = (
        jax.ShapeDtypeStruct((part if entry.kind == kind else large,), RECORDED_DTYPE)
        for kind in (kinds.ALL_GATHER, kinds.REDUCE_SCATTER)
    )
    return bench.time(_body(entry.kind, names, entry.devices), [read], found)


def _body(kind: str, names: tuple[str, ...], devices: int) -> Callable[[Any], Any]:
    ring = [(k, (k + 1) % devices) for k in range(devices)]
    bodies: dict[str, Callable[[Any], Any]] = {
        kinds.ALL_GATHER: lambda x: lax.all_gather(x, names, tiled=True),
        kinds.ALL_REDUCE: lambda x: lax.psum(x, names),
        kinds.REDUCE_SCATTER: lambda x: lax.psum_scatter(x, names, tiled=True),
        kinds.ALL_TO_ALL: lambda x: lax.all_to_all(x, names, 0, 0, tiled=True),
        kinds.COLLECTIVE_PERMUTE: lambda x: lax.ppermute(x, names, ring),
    }
    return bodies[kind]
