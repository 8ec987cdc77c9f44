"""What is measured between devices: collectives along axes of the mesh, over a ladder of sizes."""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from math import prod
from typing import Any

import jax
from jax import lax

from kiwi.mesh import collective_kinds as kinds
from kiwi.mesh.collectives import RECORDED_DTYPE
from kiwi.mesh.device_mesh import DeviceMesh
from kiwi.mesh.profile_entries import CollectiveEntry
from kiwi.profiling.measure import UNMEASURED, Kind, Point, TimedFunction

COLLECTIVE_BYTES = tuple(2**k for k in range(10, 27, 4))
"""The ladder of sizes, from 1 KiB to 64 MiB."""

_ITEM_BYTES = 4  # of `RECORDED_DTYPE`


def collective_points(
    mesh: DeviceMesh, sizes_bytes: Sequence[int] = COLLECTIVE_BYTES
) -> Iterator[Point]:
    """Every kind along every set of mesh axes."""
    for count in range(1, len(mesh.nontrivial_axes) + 1):
        for axes in combinations(mesh.nontrivial_axes, count):
            devices = prod(mesh.shape[a] for a in axes)
            # Buffers are cut into equal parts of whole items.
            part = devices * _ITEM_BYTES
            for kind in kinds.KINDS:
                for size in sizes_bytes:
                    yield _point(mesh, kind, axes, max(1, size // part) * part)


def _point(mesh: DeviceMesh, kind: str, axes: tuple[int, ...], size_bytes: int) -> Point:
    """A collective in all groups of devices at once."""
    devices = prod(mesh.shape[a] for a in axes)
    entry = CollectiveEntry(kind, devices, RECORDED_DTYPE, size_bytes, *UNMEASURED, axes)
    large = size_bytes // _ITEM_BYTES
    read, found = (
        jax.ShapeDtypeStruct((large // devices if kind == smaller else large,), RECORDED_DTYPE)
        for smaller in (kinds.ALL_GATHER, kinds.REDUCE_SCATTER)
    )
    body = _body(kind, tuple(mesh.axis_names[a] for a in axes), devices)
    name = f"{kind} of {size_bytes} bytes along mesh axes {', '.join(map(str, axes))}"
    function = TimedFunction(body, [read], found)
    return Point(entry, Kind.COLLECTIVE, name, size_bytes, (function,))


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
