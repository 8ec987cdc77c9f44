"""The chips of a TPU slice: a grid in which each is connected to its neighbours.

Chips of two dimensions are connected to four neighbours, of three to six. A dimension is a ring
where its ends are connected too, and a line otherwise. Slices are connected by a network.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from kiwi.errors import InvalidMeshError


@dataclass(frozen=True)
class Interconnect:
    """How chips of one kind are connected, and what XLA:TPU calls them.

    - `generation`: the name of the chip.
    - `dimensions`: of the grid, 2 or 3.
    - `ring_multiple`: of how many chips the dimensions of a ring are multiples; all dimensions are
      rings or none where there are three, which are made of cubes.
    - `chip_config`: what XLA:TPU is told beside the name; `devices_per_chip`: as jax counts them.
    """

    generation: str
    dimensions: int
    ring_multiple: int
    chip_config: str | None = None
    devices_per_chip: int = 1


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
    def parse(cls, text: str) -> "Topology":
        """Reads `4x4`, or `v5e:4x4` as XLA writes it; raises `InvalidMeshError`."""
        try:
            extents = tuple(int(part) for part in text.rpartition(":")[2].split("x"))
        except ValueError:
            raise _no_topology(text) from None
        return cls(extents)

    @classmethod
    def of_devices(cls, devices: int, wiring: Interconnect) -> "Topology":
        """The grid of so many devices whose longest dimension is the shortest; raises
        `InvalidMeshError` if there is none."""
        chips, rest = divmod(devices, wiring.devices_per_chip)
        if rest:
            raise InvalidMeshError(
                f"{devices} devices are not whole chips.",
                cause=f"A chip of {wiring.generation} is {wiring.devices_per_chip} devices.",
                suggestion="Another mesh_shape.",
            )
        grid = min(_grids(chips, wiring.dimensions), key=lambda extents: extents[::-1])
        # Hosts lie in the first two dimensions.
        return cls(tuple(sorted(grid, key=lambda extent: (extent == 1, extent))))

    def device_count(self, wiring: Interconnect) -> int:
        """How many devices jax counts."""
        return prod(self.extents) * self.slices * wiring.devices_per_chip

    def ordered(self, devices: Iterable[Any]) -> list[Any]:
        """jax's devices by slice, then by coordinates, the last dimension fastest.

        Other devices than TPUs, which have no coordinates, stay as they are.
        """
        found = list(devices)
        return sorted(found, key=_place) if all(hasattr(d, "coords") for d in found) else found


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
    return InvalidMeshError(f"{text!r} is no topology.", suggestion='For example topology="2x4".')
