"""The placement of a mesh's axes on the dimensions of a TPU topology.

The dimensions are, major to minor: the slices, the dimensions of a slice's grid, and the devices of
a chip. An axis takes parts of one or several dimensions. A part has a size and a stride: a part of
a dimension of 16 chips may be 8 neighbours, or 2 chips at a distance of 8.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from kiwi.mesh.hardware import Hardware, Link
from kiwi.mesh.topology import Interconnect, Topology


class Connection(enum.Enum):
    """The connection of the devices along a dimension: a line, a ring, a chip's own links, or a
    network."""

    LINE = "line"
    RING = "ring"
    CHIP = "chip"
    NETWORK = "network"


@dataclass(frozen=True)
class Dimension:
    """A dimension of a topology: equal devices in a row.

    - `extent`: the number of devices.
    - `link`: the link from a device to one of its neighbours, one way; for a network, the link from
      a device to the network.
    """

    extent: int
    connection: Connection
    link: Link


@dataclass(frozen=True)
class DimensionPart:
    """A part of a dimension: `size` devices at distances of `stride`. `dimension`: its index in the
    topology."""

    dimension: int
    size: int
    stride: int

    def is_ring(self, dimension: Dimension) -> bool:
        """Whether the part goes all around a ring."""
        is_whole = self.size * self.stride == dimension.extent
        return is_whole and dimension.connection is Connection.RING

    def text(self, dimension: Dimension) -> str:
        """Returns the part in words, such as `ring of 16`."""
        if dimension.connection is Connection.NETWORK:
            return f"{self.size} slices"
        if dimension.connection is Connection.CHIP:
            return f"{self.size} devices of a chip"
        form = "ring" if self.is_ring(dimension) else "line"
        apart = f" every {self.stride} chips" if self.stride > 1 else ""
        return f"{form} of {self.size}{apart}"


@dataclass(frozen=True)
class Placement:
    """The parts of each axis of a mesh, major to minor; none for an axis of one device.

    All parts together cover every dimension of the topology.
    """

    axes: tuple[tuple[DimensionPart, ...], ...]

    def parts(self, axes: Iterable[int]) -> tuple[DimensionPart, ...]:
        """Returns the parts of several axes. Parts that continue each other are joined."""
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
        """Returns the device at each position of the mesh, row-major. Devices are numbered in the
        order of the dimensions."""
        parts = [part for axis in self.axes for part in axis]
        places = sorted(range(len(parts)), key=lambda k: (parts[k].dimension, -parts[k].stride))
        devices = np.arange(prod(dimension.extent for dimension in dimensions))
        grid = devices.reshape([parts[k].size for k in places])
        return tuple(grid.transpose(np.argsort(places)).ravel().tolist())

    def axis_texts(self, dimensions: Sequence[Dimension]) -> tuple[str, ...]:
        """Returns the connection of each axis in words."""
        return tuple(
            " x ".join(part.text(dimensions[part.dimension]) for part in self.parts((axis,)))
            for axis in range(len(self.axes))
        )


def dimensions_of(
    topology: Topology, wiring: Interconnect, hardware: Hardware
) -> tuple[Dimension, ...]:
    """Returns all dimensions of a topology, including dimensions of extent 1. Their devices are in
    the order of `Topology.ordered`."""
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
    """Returns the placement with the same groups of devices along each axis as an order of devices;
    None if there is none. The order within a group does not matter.

    - `order`: as `Placement.device_order` returns it.
    - `shape`: the shape of the mesh.
    """
    extents = [dimension.extent for dimension in dimensions]
    grid = np.asarray(order).reshape(shape)
    axes = []
    for axis, size in enumerate(shape):
        first = np.moveaxis(grid, axis, 0).reshape(size, -1)[:, 0]
        axes.append(_parts_at(np.unravel_index(first, extents)))
    parts = [part for axis in axes for part in axis]
    covered = [
        prod(axis_part.size for axis_part in parts if axis_part.dimension == number)
        for number in range(len(extents))
    ]
    if covered != extents:
        return None
    placement = Placement(tuple(axes))
    same = np.reshape(
        placement.device_order(dimensions),
        [prod(axis_part.size for axis_part in axis) for axis in axes],
    )
    is_same = grid.shape == same.shape and all(
        np.array_equal(_groups(grid, axis), _groups(same, axis)) for axis in range(grid.ndim)
    )
    return placement if is_same else None


def _parts_at(places: Sequence[np.ndarray]) -> tuple[DimensionPart, ...]:
    """Returns the parts that contain the devices of one group. `places`: the positions of the
    devices along each dimension."""
    distinct = [np.unique(positions) for positions in places]
    return tuple(
        DimensionPart(dimension, len(coordinates), int(coordinates[1] - coordinates[0]))
        for dimension, coordinates in enumerate(distinct)
        if len(coordinates) > 1
    )


def _groups(grid: np.ndarray, axis: int) -> np.ndarray:
    """Returns the sorted devices of each group along an axis, shape [groups, devices]. Groups are
    sorted by their first devices."""
    groups = np.sort(np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis]), axis=1)
    return groups[groups[:, 0].argsort()]
