"""The strategies of all units of a graph; units that look alike share theirs.

A transformer's layers consist of the same units, so that enumerating one layer serves all.
"""

from collections.abc import Hashable, Sequence

from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh, ReshardingTable
from kiwi.problem.costs import UnitWork
from kiwi.problem.dominance import undominated
from kiwi.problem.edges import resharding_table
from kiwi.problem.manual_computations import given_layouts
from kiwi.problem.strategies import ShardingStrategy, enumerate_strategies
from kiwi.xla.rules.base import Rules


class StrategyTable:
    """Strategies by unit."""

    def __init__(self, units: UnitGraph, mesh: DeviceMesh, rules: Rules) -> None:
        self._units, self._mesh, self._rules = units, mesh, rules
        self._all: dict[Hashable, tuple[ShardingStrategy, ...]] = {}
        self._undominated: dict[Hashable, tuple[ShardingStrategy, ...]] = {}

    def of(self, unit: Unit) -> tuple[ShardingStrategy, ...]:
        """The undominated strategies of one unit."""
        key = self._appearance(unit)
        if key not in self._undominated:
            self._undominated[key] = self.undominated(unit, self.all_of(unit))
        return self._undominated[key]

    def undominated(
        self, unit: Unit, strategies: Sequence[ShardingStrategy]
    ) -> tuple[ShardingStrategy, ...]:
        """Those of a unit's strategies that no other one of them beats."""
        return undominated(self._units, unit, self._resharding, strategies)

    def _resharding(self, value: int) -> ReshardingTable:
        info = self._units.graph.program.values[value]
        return resharding_table(self._mesh, self._rules, info)

    def all_of(self, unit: Unit) -> tuple[ShardingStrategy, ...]:
        """All strategies of one unit, also those that others beat."""
        key = self._appearance(unit)
        if key not in self._all:
            self._all[key] = enumerate_strategies(self._units, unit, self._mesh, self._rules)
        return self._all[key]

    def _appearance(self, unit: Unit) -> Hashable:
        """All that strategies and their dominance depend on."""
        values = self._units.graph.program.values
        reads = tuple(
            (values[value].shape, str(values[value].dtype), dims) for value, dims in unit.rule.reads
        )
        outputs = tuple(
            (values[o].shape, str(values[o].dtype), self._units.result_trips(o))
            for o in unit.outputs
        )
        rule = unit.rule
        factors = (rule.factor_sizes, rule.results, rule.reduction, rule.blocked)
        given = given_layouts(self._units, unit, self._mesh)
        copied = self._rules.copied_operands(self._units, unit)
        work = UnitWork.of(self._units, unit, self._mesh)
        return reads, outputs, factors, given, copied, work, self._units.operand_trips(unit)
