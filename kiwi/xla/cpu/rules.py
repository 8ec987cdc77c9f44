"""What XLA:CPU does with a program, as far as memory and communication depend on it.

- It has no reduce-scatter: it all-reduces, once for each dimension, and cuts
  (rule (b) of `kiwi.xla.rules.partitioner`).
- It moves bfloat16 as float32 (`python -m benchmarks.resharding`, jax 0.10.2).
- It writes a sum over devices to another place than the summands (jax 0.10.2, a product whose
  operands are cut along what is summed over; `tests/plans/test_memory.py`).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from kiwi.hlo.chains import FusedMaps
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.in_place import overwritable_by_operand
from kiwi.hlo.program import MAX_POOLING_GRADIENT, Equation, Value
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.interval import Interval
from kiwi.mesh import DeviceMesh, Hardware
from kiwi.xla.cpu.copied_operands import CopiedMatrices
from kiwi.xla.rules.base import Intervals, Rules, Workspace
from kiwi.xla.rules.max_pooling import index_bytes


class CpuRules(Rules):
    """The rules of XLA:CPU."""

    fused_maps = FusedMaps.OF_ONE_READER
    moved_itemsizes: ClassVar = {"bfloat16": 4}

    def scatters_sums(self, mesh: DeviceMesh, scattered: Mapping[int, int], part: Value) -> bool:
        """Never."""
        return False

    def held_from_start(
        self, units: UnitGraph, unit: Unit, result_bytes: int, devices: int
    ) -> Intervals:
        """Also the indices that max pooling's gradient reduces, and the zeros that a scatter adds
        to, whose place the result takes, unless a plan expands them in the step itself: constants
        that depend on nothing (`benchmarks/fidelity`, convnet and lstm, jax 0.10.2). A result of
        the function has its place from the start anyway.
        """
        name = units.graph.program.equations[unit.root].name
        if name == MAX_POOLING_GRADIENT:
            return (Interval(0, unit.index + 1, index_bytes(units, unit, result_bytes)),)
        if name == "scatter-add" and _adds_to_constants(units, unit):
            return (Interval(0, unit.index, result_bytes),)
        return super().held_from_start(units, unit, result_bytes, devices)

    def workspace(self, units: UnitGraph, unit: Unit, hardware: Hardware) -> Workspace:
        """See `kiwi.xla.cpu.copied_operands`."""
        return CopiedMatrices.of(units, unit)

    def overwritable(self, graph: HloGraph, unit: Unit) -> tuple[int, ...]:
        """Also what is mapped to the operand of a sliding window, which is computed apart."""
        return (*super().overwritable(graph, unit), *overwritable_by_operand(graph, unit))

    def sums_elsewhere(
        self, root: Equation, cuts: Sequence[int], scattered: Collection[int]
    ) -> bool:
        """Always."""
        return True


def _adds_to_constants(units: UnitGraph, unit: Unit) -> bool:
    """Whether a scatter outside of loops writes a temporary, and starts from a small constant."""
    program = units.graph.program
    start = program.equations[unit.root].inputs[0]
    producer = program.values[start].producer if isinstance(start, int) else None
    if producer is None or producer not in unit.equations or program.equations[producer].reads:
        return False
    if program.is_large_constant(producer):
        return False
    fresh = program.result_values - set(units.aliased_results)
    return unit.loop is None and unit.index > 0 and fresh.isdisjoint(unit.outputs)
