"""The chips of TPU slices: a grid in which each is connected to its neighbours.

Chips of two dimensions are connected to four neighbours, of three to six. A dimension is a ring
where its ends are connected too, and a line otherwise. Slices are connected by a network.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from kiwi.errors import InvalidMeshError
from kiwi.messages import topics


@dataclass(frozen=True)
class Interconnect:
    """How chips of one kind are connected, and XLA:TPU's names for them.

    - `generation`: the name of the chip.
    - `dimensions`: of the grid, 2 or 3.
    - `ring_multiple`: the extent of a ring is a multiple of this many chips; see `rings`.
    - `chip_config`: XLA:TPU's configuration beside the name. `devices_per_chip`: as jax counts
      them.
    - `chip_bandwidth_bytes_per_second`: between the devices of one chip, one way; None means that
      of a link between chips.
    """

    generation: str
    dimensions: int
    ring_multiple: int
    chip_config: str | None = None
    devices_per_chip: int = 1
    chip_bandwidth_bytes_per_second: float | None = None

    def rings(self, extents: tuple[int, ...]) -> tuple[bool, ...]:
        """Which dimensions of a slice are rings.

        In three dimensions, switches around cubes of chips connect them: all dimensions are rings
        if all consist of whole cubes, and none otherwise. In two dimensions, each is a ring if it
        spans the pod.
        """
        whole = tuple(extent % self.ring_multiple == 0 for extent in extents)
        return (all(whole),) * len(whole) if self.dimensions == 3 else whole


@dataclass(frozen=True)
class Topology:
    """A grid of chips, several times.

    - `extents`: chips along each dimension of a slice; `slices`: how many slices there are.

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
        """Reads `4x4`, or `v5e:4x4` as XLA writes it; raises `InvalidMeshError`."""
        try:
            extents = tuple(int(part) for part in text.rpartition(":")[2].split("x"))
        except ValueError:
            raise _no_topology(text) from None
        return cls(extents, slices)

    @classmethod
    def of_devices(cls, devices: int, wiring: Interconnect, slices: int = 1) -> "Topology":
        """The grids of so many devices whose longest dimension is shortest; raises
        `InvalidMeshError` if there are none."""
        chips, rest = divmod(devices, wiring.devices_per_chip * slices)
        if rest:
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
        """The smallest grid that holds jax's TPUs, by their coordinates."""
        chips = list(devices)
        spans = [max(line) - min(line) + 1 for line in zip(*(d.coords for d in chips), strict=True)]
        return cls(tuple(spans[: wiring.dimensions]), len({_place(d)[0] for d in chips}))

    def device_count(self, wiring: Interconnect) -> int:
        """How many devices jax counts."""
        return prod(self.extents) * self.slices * wiring.devices_per_chip

    def ordered(self, devices: Iterable[Any]) -> list[Any]:
        """jax's devices by slice, then by coordinates, the last dimension fastest.

        Other devices than TPUs, which have no coordinates, stay as they are.
        """
        chips = list(devices)
        return sorted(chips, key=_place) if have_coordinates(chips) else chips


def have_coordinates(devices: Iterable[Any]) -> bool:
    """Whether jax knows the coordinates of the devices, as it does for TPUs."""
    return all(hasattr(device, "coords") for device in devices)


def _place(device: Any) -> tuple[Any, ...]:
    return (getattr(device, "slice_index", None) or 0, *device.coords, device.core_on_chip)


def _grids(chips: int, dimensions: int, least: int = 1) -> Iterator[tuple[int, ...]]:
    """All grids of so many chips, their dimensions in rising order."""
    if dimensions == 1:
        if chips >= least:
            yield (chips,)
        return
    for extent in range(least, chips + 1):
        if chips % extent == 0:
            for rest in _grids(chips // extent, dimensions - 1, extent):
                yield (extent, *rest)


def _no_topology(text: str) -> InvalidMeshError:
    return InvalidMeshError(f"{text!r} is no topology.", topic=topics.TOPOLOGY)
