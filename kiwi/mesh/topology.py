"""The chips of TPU slices: grids in which each chip is connected to its neighbours.

A chip has four neighbours in a grid of two dimensions, and six in a grid of three. A dimension is a
ring if its ends are connected, and a line otherwise. A network connects slices.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from kiwi.errors import InvalidMeshError
from kiwi.messages import topics


@dataclass(frozen=True)
class Interconnect:
    """The connections of one kind of chip, and XLA:TPU's names for it.

    - `generation`: the name of the chip.
    - `dimensions`: the number of dimensions of the grid, 2 or 3.
    - `ring_multiple`: the extent of a ring is a multiple of this number of chips, see `rings`.
    - `chip_config`: XLA:TPU's configuration in addition to the name.
    - `devices_per_chip`: the number of devices that JAX counts per chip.
    - `chip_bandwidth_bytes_per_second`: the bandwidth between the devices of one chip, one way;
      None if it equals the bandwidth of a link between chips.
    """

    generation: str
    dimensions: int
    ring_multiple: int
    chip_config: str | None = None
    devices_per_chip: int = 1
    chip_bandwidth_bytes_per_second: float | None = None

    def rings(self, extents: tuple[int, ...]) -> tuple[bool, ...]:
        """Returns, for each dimension of a slice, whether it is a ring.

        In three dimensions, switches connect cubes of chips. All dimensions are rings if all
        consist of whole cubes; otherwise none is. In two dimensions, a dimension is a ring if it
        spans the pod.
        """
        whole = tuple(extent % self.ring_multiple == 0 for extent in extents)
        return (all(whole),) * len(whole) if self.dimensions == 3 else whole


@dataclass(frozen=True)
class Topology:
    """Equal slices, each a grid of chips.

    - `extents`: the number of chips along each dimension of a slice.
    - `slices`: the number of slices.

    **Raises:** `InvalidMeshError` if a number is not positive.
    """

    extents: tuple[int, ...]
    slices: int = 1

    def __post_init__(self) -> None:
        if not self.extents or min(*self.extents, self.slices) < 1:
            raise _no_topology(str(self))

    def __str__(self) -> str:
        return "x".join(map(str, self.extents))

    @classmethod
    def parse(cls, text: str, slices: int = 1) -> "Topology":
        """Returns the topology of a text such as `4x4`, or `v5e:4x4` as XLA writes it.

        **Raises:** `InvalidMeshError` if the text is no topology.
        """
        try:
            extents = tuple(int(part) for part in text.rpartition(":")[2].split("x"))
        except ValueError:
            raise _no_topology(text) from None
        return cls(extents, slices)

    @classmethod
    def of_devices(cls, devices: int, wiring: Interconnect, slices: int = 1) -> "Topology":
        """Returns the topology of `devices` devices in all with the most compact grid: its longest
        dimension is as short as possible.

        **Raises:** `InvalidMeshError` if the devices are not whole chips in equal slices.
        """
        chips, remainder = divmod(devices, wiring.devices_per_chip * slices)
        if remainder:
            raise InvalidMeshError(
                f"{devices} devices are not whole chips of {slices} equal slices.",
                topic=topics.SLICES,
                cause=f"A chip of {wiring.generation} is {wiring.devices_per_chip} devices.",
                suggestion="Another mesh_shape or num_slices.",
            )
        grid = min(_grids(chips, wiring.dimensions), key=lambda extents: extents[::-1])
        # Hosts lie in the first two dimensions.
        return cls(tuple(sorted(grid, key=lambda extent: (extent == 1, extent))), slices)

    @classmethod
    def around(cls, devices: Iterable[Any], wiring: Interconnect) -> "Topology":
        """Returns the topology with the smallest grid that contains JAX's TPUs, by their
        coordinates."""
        chips = list(devices)
        spans = [
            max(line) - min(line) + 1
            for line in zip(*(device.coords for device in chips), strict=True)
        ]
        return cls(tuple(spans[: wiring.dimensions]), len({_place(device)[0] for device in chips}))

    def device_count(self, wiring: Interconnect) -> int:
        """Returns the number of devices that JAX lists for these chips."""
        return prod(self.extents) * self.slices * wiring.devices_per_chip

    def ordered(self, devices: Iterable[Any]) -> list[Any]:
        """Returns JAX's devices sorted by slice and then by coordinates, the last dimension
        fastest.

        Devices without coordinates (all but TPUs) keep their order.
        """
        chips = list(devices)
        return sorted(chips, key=_place) if have_coordinates(chips) else chips


def have_coordinates(devices: Iterable[Any]) -> bool:
    """Whether JAX knows the coordinates of all devices, as for TPUs."""
    return all(hasattr(device, "coords") for device in devices)


def _place(device: Any) -> tuple[Any, ...]:
    return (getattr(device, "slice_index", None) or 0, *device.coords, device.core_on_chip)


def _grids(chips: int, dimensions: int, least: int = 1) -> Iterator[tuple[int, ...]]:
    """Yields all grids of `chips` chips whose extents are at least `least` and in rising order."""
    if dimensions == 1:
        if chips >= least:
            yield (chips,)
        return
    for extent in range(least, chips + 1):
        if chips % extent == 0:
            for later_extents in _grids(chips // extent, dimensions - 1, extent):
                yield (extent, *later_extents)


def _no_topology(text: str) -> InvalidMeshError:
    return InvalidMeshError(f"{text!r} is no topology.", topic=topics.TOPOLOGY)
