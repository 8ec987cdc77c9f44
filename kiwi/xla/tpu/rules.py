"""What XLA:TPU does with a program, as far as memory and communication depend on it."""

from collections.abc import Hashable, Mapping, Sequence
from math import prod

from kiwi.hlo.chains import FusedMaps
from kiwi.hlo.graph import Phase
from kiwi.hlo.in_place import is_of_library
from kiwi.hlo.program import Value
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import DeviceMesh, Hardware, TensorSharding
from kiwi.xla.rules.base import Rules, Workspace
from kiwi.xla.tpu.buffers import buffers_of
from kiwi.xla.tpu.gathered_maps import GatheredMaps


class TpuRules(Rules):
    """The rules of XLA:TPU."""

    fused_maps = FusedMaps.OF_MATMULS
    copies_gathered_results = True
    expands_max_pooling = False
    makes_constants_early = False
    sums_beside_one_kernel = True
    combined_sums_bytes = 8 * 2**20  # Of attention's projections, 4 MiB each; none of 8 MiB.

    def local_bytes(
        self, units: UnitGraph, value: int, layout: TensorSharding, mesh_shape: Sequence[int]
    ) -> int:
        """See `kiwi.xla.tpu.buffers`."""
        return buffers_of(units).local_bytes(value, layout, mesh_shape)

    def stored_as(self, units: UnitGraph, value: int) -> Hashable:
        """Whether in bfloat16, and with tiles of which dimensions."""
        buffers = buffers_of(units)
        return buffers.is_narrow(value), buffers.images.get(value)

    def stored_itemsize(self, units: UnitGraph, value: int) -> int:
        """See `kiwi.xla.tpu.buffers`."""
        return 2 if buffers_of(units).is_narrow(value) else super().stored_itemsize(units, value)

    def padding(
        self, units: UnitGraph, value: int, layout: TensorSharding, mesh_shape: Sequence[int]
    ) -> float:
        """That of tiles, see `kiwi.xla.tpu.buffers`."""
        return buffers_of(units).padding(value, layout, mesh_shape)

    def moved_value(self, units: UnitGraph, unit: Unit, value: int) -> Value:
        """Also what the unit multiplies in bfloat16, see `kiwi.xla.tpu.buffers`."""
        moved = super().moved_value(units, unit, value)
        narrow = moved.of_dtype("bfloat16")
        is_wider = str(moved.dtype) == "float32"
        return narrow if is_wider and buffers_of(units).multiplies_narrow(unit, value) else moved

    def copied_bytes(
        self, units: UnitGraph, moved: Value, layout: TensorSharding, mesh_shape: Sequence[int]
    ) -> int:
        """See `kiwi.xla.tpu.buffers`."""
        return buffers_of(units).copied_bytes(moved, layout, mesh_shape)

    def workspace(self, units: UnitGraph, unit: Unit, hardware: Hardware) -> Workspace:
        """See `kiwi.xla.tpu.gathered_maps`."""
        return GatheredMaps.of(units, unit)

    def scatters_sums(self, mesh: DeviceMesh, scattered: Mapping[int, int]) -> bool:
        """Not over all chips of a square of 4 x 4 or more, or of a slice of three dimensions."""
        extents = () if mesh.topology is None else mesh.topology.extents
        longer = [extent for extent in extents if extent > 1]
        is_whole = prod(mesh.shape[axis] for axis in scattered) == mesh.size
        is_square = len(longer) == 2 and longer[0] == longer[1] > 2
        return not is_whole or len(set(scattered.values())) > 1 or not (is_square or longer[2:])

    def sums_behind(self, units: UnitGraph, unit: Unit) -> int | None:
        """The next operator of the backward pass that does not read the gradient of a parameter,
        another product as a rule: the scheduler puts the collective behind it."""
        is_gradient = units.graph.phase_of(unit.root) is Phase.BACKWARD
        if not is_gradient or not is_of_library(units.graph, unit):
            return None
        following = (u for u in units.units[unit.index + 1 :] if u.phase is not Phase.UPDATE)
        other = next(following, None)
        if other is None or other.loop != unit.loop:
            return None
        return other.index if set(unit.outputs).isdisjoint(other.reads) else None
