"""The strategies of all units of a graph; units that look alike share theirs.

A transformer's layers consist of the same units, so that enumerating one layer serves all.
"""

from collections.abc import Hashable

from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh
from kiwi.problem.costs import UnitWork
from kiwi.problem.dominance import undominated
from kiwi.problem.manual_computations import given_layouts
from kiwi.problem.strategies import ShardingStrategy, enumerate_strategies


class StrategyTable:
    """Strategies by unit."""

    def __init__(self, units: UnitGraph, mesh: DeviceMesh) -> None:
        self._units = units
        self._mesh = mesh
        self._all: dict[Hashable, tuple[ShardingStrategy, ...]] = {}
        self._undominated: dict[Hashable, tuple[ShardingStrategy, ...]] = {}

    def of(self, unit: Unit) -> tuple[ShardingStrategy, ...]:
        """The undominated strategies of one unit."""
        key = self._appearance(unit)
        if key not in self._undominated:
            found = self.all_of(unit)
            self._undominated[key] = undominated(self._units, unit, self._mesh, found)
        return self._undominated[key]

    def all_of(self, unit: Unit) -> tuple[ShardingStrategy, ...]:
        """All strategies of one unit, also those that others beat."""
        key = self._appearance(unit)
        if key not in self._all:
            self._all[key] = enumerate_strategies(self._units, unit, self._mesh)
        return self._all[key]

    def _appearance(self, unit: Unit) -> Hashable:
        """All that strategies and their dominance depend on."""
        values = self._units.graph.program.values
        reads = tuple(
            (values[value].shape, str(values[value].dtype), dims) for value, dims in unit.rule.reads
        )
        outputs = tuple(
            (values[o].shape, str(values[o].dtype), len(self._units.readers.get(o, ())))
            for o in unit.outputs
        )
        rule = unit.rule
        factors = (rule.factor_sizes, rule.results, rule.reduction, rule.blocked)
        given = given_layouts(self._units, unit, self._mesh)
        return reads, outputs, factors, given, UnitWork.of(self._units, unit, self._mesh)
