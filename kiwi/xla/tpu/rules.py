"""What XLA:TPU does with a program, as far as memory and communication depend on it."""

from collections.abc import Sequence

from kiwi.hlo.fusion import FusedMaps
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import TensorSharding
from kiwi.solver.problem import Interval
from kiwi.xla.rules.base import CopiedOperands, Intervals, Rules
from kiwi.xla.tpu.buffers import buffers_of
from kiwi.xla.tpu.result_order import is_transposed
from kiwi.xla.tpu.unfused_operands import UnfusedOperands


class TpuRules(Rules):
    """The rules of XLA:TPU."""

    places_in_time_order = True
    fused_maps = FusedMaps.OF_MATMULS
    copies_gathered_results = True
    expands_max_pooling = False
    makes_constants_early = False

    def local_bytes(
        self, units: UnitGraph, value: int, layout: TensorSharding, mesh_shape: Sequence[int]
    ) -> int:
        """See `kiwi.xla.tpu.buffers`."""
        return buffers_of(units).local_bytes(value, layout, mesh_shape)

    def held_from_start(self, units: UnitGraph, unit: Unit, result_bytes: int) -> Intervals:
        """Also half of the donated argument that a transposed result takes over, see
        `kiwi.xla.tpu.result_order`."""
        held = super().held_from_start(units, unit, result_bytes)
        replaced = [value for value in unit.outputs if value in units.aliased_results]
        if replaced != list(unit.outputs) or not any(is_transposed(units, v) for v in replaced):
            return held
        return *held, Interval(0, unit.index + 1, result_bytes // 2)

    def copied_operands(self, units: UnitGraph, unit: Unit) -> CopiedOperands:
        """See `kiwi.xla.tpu.unfused_operands`."""
        return UnfusedOperands.of(units, unit)

    def is_transposed(self, units: UnitGraph, value: int) -> bool:
        """See `kiwi.xla.tpu.result_order`."""
        return is_transposed(units, value)
