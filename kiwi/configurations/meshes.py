"""The meshes that a number of devices can form, without those that are the same."""

from collections.abc import Hashable
from dataclasses import replace

from kiwi.mesh import DeviceMesh
from kiwi.mesh.assignment import shapes_of
from kiwi.options import Options


def distinct_meshes(
    devices: int, options: Options, most_axes: int = 3
) -> tuple[tuple[int, ...], ...]:
    """The shapes of one to three axes, those of few axes first; of shapes whose axes have the
    same sizes and links in another order only the first.

    Under a profile of measurements every order counts: they are of meshes of one order.

    **Raises:** `InvalidMeshError` if the profile has no such number of devices.
    """
    table = options.table()
    found: dict[Hashable, tuple[int, ...]] = {}
    for shape in sorted(shapes_of(devices, most_axes), key=lambda shape: (len(shape), shape)):
        mesh = replace(options, mesh_shape=shape).device_mesh(table)
        found.setdefault(_signature(mesh), shape)
    return tuple(found.values())


def _signature(mesh: DeviceMesh) -> Hashable:
    """Equal for meshes whose collectives cost the same."""
    if mesh.table is not None:
        return mesh.shape
    if mesh.placement is None:
        links = (
            (link.bandwidth_bytes_per_second, link.latency_seconds, link.efficiency)
            for link in mesh.links
        )
        return tuple(sorted(zip(mesh.shape, links, strict=True)))
    parts = (
        tuple(sorted((part.dimension, part.size, part.stride) for part in axis))
        for axis in mesh.placement.axes
    )
    return tuple(sorted(zip(mesh.shape, parts, strict=True)))
