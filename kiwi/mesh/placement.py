"""The placement of a mesh's axes on the dimensions of a TPU topology.

The dimensions are, major to minor: the slices, those of a slice's grid, the devices of a chip. An
axis takes parts of one or several dimensions. A part of a dimension of 16 chips may be 8
neighbours, or 2 chips that are 8 apart. Its stride distinguishes the two.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from kiwi.mesh.hardware import Hardware, Link
from kiwi.mesh.topology import Interconnect, Topology


class Connection(enum.Enum):
    """How the devices along a dimension are connected."""

    LINE = "line"
    RING = "ring"
    CHIP = "chip"
    NETWORK = "network"


@dataclass(frozen=True)
class Dimension:
    """Equal devices in a row.

    - `extent`: the number of devices.
    - `link`: from a device to one of its neighbours, one way; for a network, from a device to it.
    """

    extent: int
    connection: Connection
    link: Link


@dataclass(frozen=True)
class DimensionPart:
    """Every `stride`-th device along dimension `dimension` of a topology, `size` of them."""

    dimension: int
    size: int
    stride: int

    def is_ring(self, dimension: Dimension) -> bool:
        """Whether it goes all around a ring."""
        is_whole = self.size * self.stride == dimension.extent
        return is_whole and dimension.connection is Connection.RING

    def text(self, dimension: Dimension) -> str:
        """In words, such as `ring of 16`."""
        if dimension.connection is Connection.NETWORK:
            return f"{self.size} slices"
        if dimension.connection is Connection.CHIP:
            return f"{self.size} devices of a chip"
        form = "ring" if self.is_ring(dimension) else "line"
        apart = f" every {self.stride} chips" if self.stride > 1 else ""
        return f"{form} of {self.size}{apart}"


@dataclass(frozen=True)
class Placement:
    """For each axis of a mesh its parts, major to minor; none for an axis of one device.

    All parts together cover every dimension.
    """

    axes: tuple[tuple[DimensionPart, ...], ...]

    def parts(self, axes: Iterable[int]) -> tuple[DimensionPart, ...]:
        """The parts of several axes together; those that continue each other are one."""
        pieces = sorted(
            (part for axis in axes for part in self.axes[axis]),
            key=lambda part: (part.dimension, part.stride),
        )
        joined: list[DimensionPart] = []
        for part in pieces:
            last = joined[-1] if joined else None
            if last and (last.dimension, last.stride * last.size) == (part.dimension, part.stride):
                joined[-1] = replace(last, size=last.size * part.size)
            else:
                joined.append(part)
        return tuple(joined)

    def device_order(self, dimensions: Sequence[Dimension]) -> tuple[int, ...]:
        """For each position of the mesh, row-major, its device in the order of the dimensions."""
        parts = [part for axis in self.axes for part in axis]
        places = sorted(range(len(parts)), key=lambda k: (parts[k].dimension, -parts[k].stride))
        devices = np.arange(prod(d.extent for d in dimensions))
        grid = devices.reshape([parts[k].size for k in places])
        return tuple(grid.transpose(np.argsort(places)).ravel().tolist())

    def axis_texts(self, dimensions: Sequence[Dimension]) -> tuple[str, ...]:
        """In words, the connection of each axis."""
        return tuple(
            " x ".join(part.text(dimensions[part.dimension]) for part in self.parts((axis,)))
            for axis in range(len(self.axes))
        )


def dimensions_of(
    topology: Topology, wiring: Interconnect, hardware: Hardware
) -> tuple[Dimension, ...]:
    """All dimensions, including those of one device; their devices are in the order of
    `Topology.ordered`."""
    grid = [
        Dimension(extent, Connection.RING if is_ring else Connection.LINE, hardware.intra_link)
        for extent, is_ring in zip(topology.extents, wiring.rings(topology.extents), strict=True)
    ]
    inside = wiring.chip_bandwidth_bytes_per_second
    link = hardware.intra_link
    chip = link if inside is None else replace(link, bandwidth_bytes_per_second=inside)
    return (
        Dimension(topology.slices, Connection.NETWORK, hardware.inter_link),
        *grid,
        Dimension(wiring.devices_per_chip, Connection.CHIP, chip),
    )


def placement_of(
    order: Sequence[int], shape: Sequence[int], dimensions: Sequence[Dimension]
) -> Placement | None:
    """The placement that puts the same groups of devices on each axis as an order of devices, see
    `Placement.device_order`; None if there is none. The order within a group does not matter."""
    extents = [dimension.extent for dimension in dimensions]
    grid = np.asarray(order).reshape(shape)
    axes = []
    for axis, size in enumerate(shape):
        first = np.moveaxis(grid, axis, 0).reshape(size, -1)[:, 0]
        axes.append(_parts_at(np.unravel_index(first, extents)))
    parts = [part for axis in axes for part in axis]
    covered = [prod(p.size for p in parts if p.dimension == d) for d in range(len(extents))]
    if covered != extents:
        return None
    placement = Placement(tuple(axes))
    same = np.reshape(
        placement.device_order(dimensions), [prod(p.size for p in axis) for axis in axes]
    )
    is_same = grid.shape == same.shape and all(
        np.array_equal(_groups(grid, axis), _groups(same, axis)) for axis in range(grid.ndim)
    )
    return placement if is_same else None


def _parts_at(places: Sequence[np.ndarray]) -> tuple[DimensionPart, ...]:
    """The parts with devices at `places`, their positions along each dimension."""
    distinct = [np.unique(positions) for positions in places]
    return tuple(
        DimensionPart(dimension, len(found), int(found[1] - found[0]))
        for dimension, found in enumerate(distinct)
        if len(found) > 1
    )


def _groups(grid: np.ndarray, axis: int) -> np.ndarray:
    """The devices of each group along an axis, in rising order."""
    groups = np.sort(np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis]), axis=1)
    return groups[groups[:, 0].argsort()]
