"""What XLA:TPU does with a program, as far as memory and communication depend on it.

The operand of a gather it computes to a buffer of its own where that is a map: logits in bfloat16
that a loss converts to float32 have a buffer in float32 while the chosen ones are taken from it
(`take_along_axis`); other readers convert for themselves. Observed with jax 0.10.2 and libtpu
0.0.42.1 for v5e (`examples/llama.py`); `tests/xla/tpu/test_gathered_maps.py` holds it.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kiwi.hlo.chains import FusedMaps
from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.graph import Phase
from kiwi.hlo.in_place import is_of_library
from kiwi.hlo.program import Value
from kiwi.hlo.rule import Dims
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import DeviceMesh, Hardware, TensorSharding
from kiwi.mesh.tiles import cuts_tiles, tiled_elements
from kiwi.xla.rules.base import Rules, Workspace
from kiwi.xla.tpu.buffers import buffers_of

_SAME = frozenset({"reshape"})
_TWO_CORES = frozenset({"v4", "v5p"})


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
        """The maps that it gathers from."""
        return GatheredMaps.of(units, unit)

    def scatters_sums(self, mesh: DeviceMesh, scattered: Mapping[int, int], part: Value) -> bool:
        """Not over two chips, all of a square of 4 x 4 or more, or of a slice of three dimensions;
        and only in pieces that tiles can be cut into."""
        interconnect = mesh.hardware.interconnect
        cores = 1 + (interconnect is not None and interconnect.generation in _TWO_CORES)
        dims, count = set(scattered.values()), prod(mesh.shape[axis] for axis in scattered)
        pieces = (cuts_tiles(part.shape, d, count, part.itemsize, cores) for d in dims)
        if count == 2 or not all(pieces):
            return False
        extents = () if mesh.topology is None else mesh.topology.extents
        longer = [extent for extent in extents if extent > 1]
        is_whole = count == mesh.size
        is_square = len(longer) == 2 and longer[0] == longer[1] > 2
        return not is_whole or len(dims) > 1 or not (is_square or longer[2:])

    def sums_behind(self, units: UnitGraph, unit: Unit) -> int | None:
        """The next operator of the backward pass that does not read the gradient of a parameter,
        another product as a rule: the scheduler puts the collective behind it."""
        if unit.phase is not Phase.BACKWARD or not is_of_library(units.graph, unit):
            return None
        following = (u for u in units.units[unit.index + 1 :] if u.phase is not Phase.UPDATE)
        other = next(following, None)
        if other is None or other.loop != unit.loop:
            return None
        return other.index if set(unit.outputs).isdisjoint(other.reads) else None


@dataclass(frozen=True)
class GatheredMaps(Workspace):
    """The maps that a unit gathers from."""

    found: tuple["_Apart", ...]

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit) -> "GatheredMaps":
        """Those of a unit."""
        dims_of = {value: dims for own in unit.rule.operator_results for value, dims in own}
        values, images = units.graph.program.values, buffers_of(units).images
        found = dict.fromkeys(_gathered(units, unit))
        return cls(
            tuple(
                _Apart(values[v].shape, values[v].itemsize, dims_of[v], images.get(v))
                for v in found
            )
        )

    def buffers(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, ...]:
        """Local bytes of each."""
        return tuple(each.local_bytes(shards) for each in self.found)


@dataclass(frozen=True)
class _Apart:
    """A tensor; `dims` are its factors, `minor` as of `tiled_elements`."""

    shape: tuple[int, ...]
    itemsize: int
    dims: Dims
    minor: tuple[int, int] | None

    def local_bytes(self, shards: Mapping[int, int]) -> int:
        cuts = (prod(shards.get(f, 1) for f in factors) for factors in self.dims)
        sizes = [size // cut for size, cut in zip(self.shape, cuts, strict=True)]
        return self.itemsize * tiled_elements(sizes, self.minor)


def _gathered(units: UnitGraph, unit: Unit) -> Iterator[int]:
    graph = units.graph
    for index in unit.equations:
        if "gather" not in graph.opcodes[index] or not graph.program.equations[index].reads:
            continue
        operand = graph.program.equations[index].inputs[0]
        if not isinstance(operand, int):
            continue
        producer = graph.program.values[operand].producer
        if producer not in unit.equations or not is_map(graph, producer):
            continue
        if graph.opcodes[producer] != _SAME and not graph.equations[producer].is_constant:
            yield operand
