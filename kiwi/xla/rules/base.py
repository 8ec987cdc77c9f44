"""What XLA's compilers do with a program, as far as memory and communication depend on it.

`Rules` says what all of them do, which follows from passes that they share; a backend's class
(`kiwi.xla.cpu.rules`, `kiwi.xla.gpu.rules`) says what its compiler does otherwise.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from types import MappingProxyType
from typing import ClassVar

from kiwi.hlo.chains import FusedMaps
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.in_place import overwritable
from kiwi.hlo.program import MAX_POOLING_GRADIENT, Equation, Value
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.interval import Interval
from kiwi.mesh import DeviceMesh, Hardware, TensorSharding

Intervals = tuple[Interval, ...]

Transposes = Callable[[TensorSharding, TensorSharding], bool]
"""Whether the copy of an operand, from the stored to the expected layout, is transposed."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """What a compiler holds beside operands and result while an operator runs: as a rule what a
    library is lent, whatever it computes."""

    lent_bytes: int = 0

    def buffers(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, ...]:
        """Local bytes of each buffer; `shards` per factor, `read_bytes` local ones per read."""
        return (self.lent_bytes,) if self.lent_bytes else ()


class Rules:
    """What a compiler does with the units of a step. Bytes are those of one device.

    - `moved_itemsizes`: by dtype the bytes per element that collectives move, where that is not
      the dtype's own size.
    - `fused_maps`: the costly maps that it fuses.
    - `copies_gathered_results`: whether a collective may not write a result where the donated
      argument is that it takes over, see `kiwi.problem.copies.GatheredResult`.
    - `expands_max_pooling`: whether its gradient takes what `kiwi.xla.rules.max_pooling` says.
    - `makes_constants_early`: whether large constants are computed at the start of the step.
    - `sums_beside_one_kernel`: whether partial sums are moved beside that kernel alone behind which
      they are reduce-scattered, and waited for where there is none.
    - `combined_sums_bytes`: up to how many bytes sums are combined with others, and waited for.
    """

    moved_itemsizes: ClassVar[Mapping[str, int]] = MappingProxyType({})
    fused_maps: ClassVar[FusedMaps] = FusedMaps.OF_MAPS
    copies_gathered_results: ClassVar[bool] = False
    expands_max_pooling: ClassVar[bool] = True
    makes_constants_early: ClassVar[bool] = True
    sums_beside_one_kernel: ClassVar[bool] = False
    combined_sums_bytes: ClassVar[int] = 0

    def local_bytes(
        self, units: UnitGraph, value: int, layout: TensorSharding, mesh_shape: Sequence[int]
    ) -> int:
        """Bytes of one device's part of a value in a layout."""
        return units.graph.program.values[value].size_bytes // layout.shard_count(mesh_shape)

    def stored_as(self, units: UnitGraph, value: int) -> Hashable:
        """What `local_bytes` of two values of one shape and dtype may differ by."""
        return None

    def stored_itemsize(self, units: UnitGraph, value: int) -> int:
        """Bytes of an element of a value, as it is stored."""
        return units.graph.program.values[value].itemsize

    def padding(
        self, units: UnitGraph, value: int, layout: TensorSharding, mesh_shape: Sequence[int]
    ) -> float:
        """By how much a buffer of one device's part of a value is larger than its elements."""
        return 1.0

    def held_from_start(
        self, units: UnitGraph, unit: Unit, result_bytes: int, devices: int
    ) -> Intervals:
        """Buffers of a unit beside its result that are live from the start of the step.

        Some operators are expanded into constants of the size of their operands. These depend on
        nothing, so that XLA's scheduler computes them first and holds them until the operator
        runs; a barrier cannot reach them (`kiwi.emit.barriers`). All do so for a scan that is left
        whole: it writes its stacked results, those behind its carry, slice by slice over zeros,
        whose place the result takes (`benchmarks/fidelity`, lstm, jax 0.10.2).
        """
        program = units.graph.program
        scan = program.equations[unit.root]
        if scan.name != "scan" or unit.index == 0:
            return ()
        sizes = [program.values[o].size_bytes for o in unit.outputs]
        stacked = sum(compress(sizes, scan.stacked_outputs))
        return (Interval(0, unit.index, result_bytes * stacked // max(1, sum(sizes))),)

    def held_without_barriers(self, units: UnitGraph, unit: Unit, result_bytes: int) -> Intervals:
        """Buffers that are live from the start only where no barrier of a plan prevents it: the
        zeros that max pooling's gradient adds to (`kiwi.xla.rules.max_pooling`)."""
        if units.graph.program.equations[unit.root].name != MAX_POOLING_GRADIENT:
            return ()
        return (Interval(0, unit.index + 1, result_bytes),)

    def workspace(self, units: UnitGraph, unit: Unit, hardware: Hardware) -> Workspace:
        """Operands that are copied to another buffer before the unit reads them, and what a
        library that computes it is lent."""
        return Workspace()

    def transposed_reads(
        self, units: UnitGraph, unit: Unit, mesh_shape: tuple[int, ...]
    ) -> Mapping[int, Transposes]:
        """By number of the read, when its gathered copy is transposed to another buffer."""
        return {}

    def transposed_operands(
        self, units: UnitGraph, unit: Unit
    ) -> Mapping[int, Callable[[Mapping[int, int]], bool]]:
        """By number of the read, when a kernel of its own transposes it first, of the pieces that
        each factor is cut into."""
        return {}

    def scatters_sums(self, mesh: DeviceMesh, scattered: Mapping[int, int], part: Value) -> bool:
        """Whether partial sums are reduce-scattered where `kiwi.xla.rules.partitioner` says so, and
        not all-reduced and cut; `scattered`: by mesh axis, the dimension of the result; `part`: one
        device's partial sums."""
        return True

    def sums_behind(self, units: UnitGraph, unit: Unit) -> int | None:
        """The later unit behind which the partial sums of a unit are reduce-scattered; None where
        that is done at once."""
        return None

    def overwritable(self, graph: HloGraph, unit: Unit) -> tuple[int, ...]:
        """The values that a unit may write its result, or an operand of its root, over."""
        return overwritable(graph, unit)

    def sums_elsewhere(
        self, root: Equation, cuts: Sequence[int], scattered: Collection[int]
    ) -> bool:
        """Whether the partial sums of an operator take another buffer beside summands and result.

        `cuts`: into how many pieces each dimension of the summands is cut; `scattered`: the
        dimensions that a reduce-scatter cuts further.
        """
        return False

    def moved_itemsize(self, value: Value) -> int:
        """Bytes per element that collectives move."""
        return self.moved_itemsizes.get(str(value.dtype), value.itemsize)

    def moved_value(self, units: UnitGraph, unit: Unit, value: int) -> Value:
        """What is moved where a unit's operand is resharded: the operand, in the narrower dtype
        that the unit converts it to first, if collectives gain by that."""
        own, narrow = units.graph.program.values[value], units.narrowed(unit, value)
        return narrow if self.moved_itemsize(narrow) < self.moved_itemsize(own) else own

    def copied_bytes(
        self, units: UnitGraph, moved: Value, layout: TensorSharding, mesh_shape: Sequence[int]
    ) -> int:
        """Bytes of one device's part of a copy of what is moved, in a layout."""
        return moved.size_bytes // layout.shard_count(mesh_shape)
