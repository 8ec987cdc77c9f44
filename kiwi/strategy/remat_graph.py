"""The `RematGraph` of a unit graph: recomputation alone, for given layouts.

Operators are units, in execution order, so that a schedule of the graph is a schedule of
units. Memory follows `kiwi.strategy.lifetimes`, except that results are not overwritten in
place: arguments and fresh results of the function are resident throughout, and a result that
takes over a donated argument's buffer needs no memory of its own. An update that overwrites a
donated argument waits for all other readers of it, by values of no bytes.
"""

from collections.abc import Sequence
from dataclasses import replace

from kiwi.hlo.graph import Phase
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import DeviceMesh
from kiwi.solver.remat import Operator, RematGraph, Value
from kiwi.strategy.strategies import ShardingStrategy
from kiwi.strategy.table import StrategyTable


def remat_graph(units: UnitGraph, strategies: Sequence[ShardingStrategy]) -> RematGraph:
    """The graph in which unit u runs under `strategies[u]`.

    Time is that of computation and of the strategies' own collectives, in seconds. Resharding
    between units is left out: on one device there is none.
    """
    builder = _Builder(units, strategies)
    operators = builder.operators()
    return RematGraph(
        operators,
        tuple(builder.values),
        tuple(range(len(operators))),
        frozenset(builder.number[value] for value in builder.kept_results),
        _backward_of(units),
    )


def one_device_strategies(units: UnitGraph, mesh: DeviceMesh) -> tuple[ShardingStrategy, ...]:
    """The cheapest strategy of each unit by itself; on a mesh of one device there is just one."""
    table = StrategyTable(units, mesh)
    return tuple(
        min(table.of(unit), key=lambda each: each.compute_seconds + each.communication_seconds)
        for unit in units.units
    )


class _Builder:
    """Numbers values as they are met; `number` maps value indices of the program."""

    def __init__(self, units: UnitGraph, strategies: Sequence[ShardingStrategy]) -> None:
        self._units, self._strategies = units, strategies
        self._info = units.graph.program.values
        self.values: list[Value] = []
        self.number: dict[int, int] = {}
        results = {r for r in units.graph.program.results if isinstance(r, int)}
        self.kept_results = [r for r in sorted(results) if r in units.producer]
        for value in (*units.graph.program.arguments, *units.graph.program.constants):
            self._add(value, self._info[value].size_bytes)
        fresh = [r for r in self.kept_results if r not in units.aliased_results]
        fresh_bytes = sum(self._info[value].size_bytes for value in fresh)
        self.values.append(Value("results", fresh_bytes))
        for value in self.kept_results:
            self._add(value, 0)

    def operators(self) -> tuple[Operator, ...]:
        """One per unit, with the order of readings and overwritings as values of no bytes."""
        found = [self._operator(unit) for unit in self._units.units]
        for result, argument in self._units.aliased_results.items():
            update = self._units.producer[result]
            for reader in self._units.readers.get(argument, ()):
                if reader >= update:
                    continue
                token = (len(self.values),)
                self.values.append(Value(f"order {reader} {update}", 0))
                before, after = found[reader], found[update]
                found[reader] = replace(before, outputs=before.outputs + token)
                found[update] = replace(after, inputs=after.inputs + token)
        return tuple(found)

    def _operator(self, unit: Unit) -> Operator:
        strategy = self._strategies[unit.index]
        for value in unit.outputs:
            whole = sum(self._info[output].size_bytes for output in unit.outputs)
            share = self._info[value].size_bytes / whole if whole else 0.0
            self._add(value, round(share * strategy.result_bytes))
        return Operator(
            f"{unit.index} {self._units.graph.opcode_of(unit.root)}",
            strategy.compute_seconds + strategy.communication_seconds,
            tuple(self.number[value] for value in unit.reads),
            tuple(self.number[value] for value in unit.outputs),
            strategy.workspace_bytes,
            unit.may_recompute,
        )

    def _add(self, value: int, size_bytes: int) -> None:
        if value not in self.number:
            self.number[value] = len(self.values)
            self.values.append(Value(f"value {value}", size_bytes))


def _backward_of(units: UnitGraph) -> tuple[tuple[int, int], ...]:
    """Each backward unit with the latest forward unit whose results it reads."""
    pairs = []
    for unit in units.units:
        if unit.phase is Phase.BACKWARD:
            writers = [units.producer[v] for v in unit.reads if v in units.producer]
            forward = [k for k in writers if units.units[k].phase is Phase.FORWARD]
            if forward:
                pairs.append((max(forward), unit.index))
    return tuple(pairs)
