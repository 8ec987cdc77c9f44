"""The facts about a step's operands on a mesh that do not depend on a plan's choices.

All problems of one step share one `Operands`: the whole problem, problems restricted to a solution,
and problems with other crowded copies.
"""

import functools
from dataclasses import dataclass

from kiwi.hlo.large_operators import share_of_gathers
from kiwi.hlo.loops import SLICE
from kiwi.hlo.program import Value
from kiwi.hlo.units import Unit
from kiwi.kernels.graph import KernelGraph
from kiwi.mesh import DeviceMesh, ReshardingTable
from kiwi.problem.edges import resharding_table


@dataclass(frozen=True, eq=False)
class Operands:
    """The resharding of operands by reader. Each table is computed once."""

    kernels: KernelGraph
    mesh: DeviceMesh

    def table(self, value: int, reader: Unit | None = None) -> ReshardingTable:
        """The prices of resharding between the layouts of a value, for a unit that reads it or for
        the value as it is stored. Equal values share one table."""
        key = value, None if reader is None else reader.index
        if key not in self._tables:
            moved, share = self.kernels.units.graph.program.values[value], 1.0
            if reader is not None:
                moved = self.kernels.moved_value(reader, value)
                share = share_of_gathers(self.kernels.units, reader, value)
            self._tables[key] = self._equal_table(moved, share)
        return self._tables[key]

    def read(self, unit: Unit, value: int) -> tuple[ReshardingTable, float, bool, bool]:
        """The fields `table`, `trips`, `is_map` and `is_slice` of `kiwi.problem.edges.Operand`, for
        a value that a unit reads."""
        key, units = (unit.index, value), self.kernels.units
        if key not in self._reads:
            trips, is_map = units.operand_trips(unit), units.only_maps(unit, value)
            is_slice = units.border(unit) == SLICE
            self._reads[key] = self.table(value, unit), trips, is_map, is_slice
        return self._reads[key]

    def _equal_table(self, moved: Value, share: float) -> ReshardingTable:
        key = moved.shape, moved.dtype, share
        if key not in self._known:
            facts = self.kernels.facts
            self._known[key] = resharding_table(self.mesh, facts, moved, least_share=share)
        return self._known[key]

    @functools.cached_property
    def _tables(self) -> dict[tuple[int, int | None], ReshardingTable]:
        return {}

    @functools.cached_property
    def _reads(self) -> dict[tuple[int, int], tuple[ReshardingTable, float, bool, bool]]:
        return {}

    @functools.cached_property
    def _known(self) -> dict[object, ReshardingTable]:
        return {}
