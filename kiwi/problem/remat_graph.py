"""The `RematGraph` of a unit graph: recomputation alone, for given layouts.

Operators are units, in execution order, so that a schedule of the graph is a schedule of
units. Memory follows `kiwi.memory.live_ranges`, except that results are not overwritten in
place: arguments and fresh results of the function are resident throughout, and a result that
takes over a donated argument's buffer needs no memory of its own. An update that overwrites a
donated argument waits for all other readers of it, by values of no bytes. Temporary memory is what
the compiler of `target` holds while a unit runs; what it holds from the start of the step on until
a unit runs (`kiwi.xla.rules.held_from_start`) is resident throughout, which is more than that.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from kiwi.hlo.graph import Phase
from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.mesh import DeviceMesh, TensorSharding
from kiwi.problem.build import PlanningProblem
from kiwi.problem.edges import resharding_table
from kiwi.problem.solved import Solved
from kiwi.problem.strategies import ShardingStrategy
from kiwi.problem.strategy_table import StrategyTable
from kiwi.solver.problem import Interval
from kiwi.solver.remat import (
    Communication,
    Operator,
    RematGraph,
    Value,
    with_communication,
)
from kiwi.xla.rules.held_from_start import hoisted


def remat_graph(
    units: UnitGraph,
    strategies: Sequence[ShardingStrategy],
    target: str,
    fence_bytes: int = 0,
) -> RematGraph:
    """The graph of one device, on which unit u runs under `strategies[u]`.

    Time is that of computation, in seconds. `target` as in `kiwi.xla.rules.held_from_start`.
    `fence_bytes` are resident beside what the units need: what keeps the program to a schedule.
    """
    values = units.graph.program.values
    graph = _Builder(units, strategies, lambda value: values[value].size_bytes, target).graph()
    return replace(graph, values=(*graph.values, Value("fences", fence_bytes)))


def sharded_remat_graph(solved: Solved) -> RematGraph:
    """The graph of one device's part of a sharded step, without opened loops.

    Time is that of computation and collectives. An operand that is expected in another layout
    than the stored one is resharded by its reader, whenever that runs, and the copy held
    meanwhile. Left out is what is communicated once whatever the schedule: the resharding of
    results into the layouts that the caller wants.
    """
    planning, layouts = solved.problem, solved.layouts
    units, values = planning.units, planning.units.graph.program.values
    strategies = [strategy for strategy, _ in solved.choices]

    def local_bytes(value: int) -> int:
        return values[value].size_bytes // layouts[value].shard_count(planning.mesh.shape)

    graph = _Builder(units, strategies, local_bytes, planning.fixed.target).graph()
    resharded = {
        unit.index: _resharded_operands(planning, unit, strategies[unit.index], layouts)
        for unit in units.units
    }
    return with_communication(graph, resharded)


def smallest_remat_graph(planning: PlanningProblem) -> RematGraph:
    """The graph with each value, and the workspace of each unit, as small as any sharding makes it.

    No sharding of the step without opened loops has a smaller working set than this graph's.
    What is hoisted is left out: it is not there for the whole step.
    """
    units, values = planning.units, planning.units.graph.program.values
    layouts = {source.value: set(source.shardings) for source in planning.sources}
    for unit, node in zip(units.units, planning.unit_nodes, strict=True):
        for place, value in enumerate(unit.outputs):
            layouts[value] = {strategy.results[place] for strategy in node.strategies}
    shards = {
        value: max(layout.shard_count(planning.mesh.shape) for layout in each)
        for value, each in layouts.items()
    }
    target = planning.fixed.target
    strategies = [
        min(node.strategies, key=lambda strategy: sum(strategy.buffers_while_running(target)))
        for node in planning.unit_nodes
    ]

    def local_bytes(value: int) -> int:
        return values[value].size_bytes // shards[value]

    return _Builder(units, strategies, local_bytes, target, with_hoisted=False).graph()


def _resharded_operands(
    planning: PlanningProblem,
    unit: Unit,
    strategy: ShardingStrategy,
    layouts: dict[int, TensorSharding],
) -> Communication:
    """Time to reshard the unit's operands, and bytes of the copies."""
    values = planning.units.graph.program.values
    seconds, copied_bytes = 0.0, 0
    for (value, _), wanted in zip(unit.rule.reads, strategy.reads, strict=True):
        if layouts[value] != wanted:
            table = resharding_table(planning.mesh, values[value])
            seconds += table.seconds(layouts[value], wanted)
            copied_bytes += values[value].size_bytes // wanted.shard_count(planning.mesh.shape)
    return Communication(seconds, copied_bytes)


def one_device_strategies(units: UnitGraph, mesh: DeviceMesh) -> tuple[ShardingStrategy, ...]:
    """The cheapest strategy of each unit by itself; on a mesh of one device there is just one."""
    table = StrategyTable(units, mesh)
    return tuple(
        min(table.of(unit), key=lambda each: each.compute_seconds + each.communication_seconds)
        for unit in units.units
    )


class _Builder:
    """Numbers values as they are met; `number` maps value indices of the program."""

    def __init__(
        self,
        units: UnitGraph,
        strategies: Sequence[ShardingStrategy],
        local_bytes: Callable[[int], int],
        target: str,
        *,
        with_hoisted: bool = True,
    ) -> None:
        self._units, self._strategies, self._target = units, strategies, target
        self._with_hoisted = with_hoisted
        on_host = units.graph.program.host_values
        self._local_bytes = lambda value: 0 if value in on_host else local_bytes(value)
        self.values: list[Value] = []
        self.number: dict[int, int] = {}
        results = {r for r in units.graph.program.results if isinstance(r, int)}
        self.kept_results = [r for r in sorted(results) if r in units.producer]
        for value in (*units.graph.program.arguments, *units.graph.program.constants):
            self._add(value, self._local_bytes(value))
        fresh = [r for r in self.kept_results if r not in units.aliased_results]
        fresh_bytes = sum(self._local_bytes(value) for value in fresh)
        self.values.append(Value("results", fresh_bytes))
        for value in self.kept_results:
            self._add(value, 0)

    def graph(self) -> RematGraph:
        """All pieces."""
        operators = self._operators()
        return RematGraph(
            operators,
            tuple(self.values),
            tuple(range(len(operators))),
            frozenset(self.number[value] for value in self.kept_results),
            _backward_of(self._units),
        )

    def _operators(self) -> tuple[Operator, ...]:
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
        strategy, held = self._strategies[unit.index], self._hoisted(unit)
        # What is written over what was held before needs no memory of its own.
        written_over = sum(each.bytes for each in held if each.end == unit.index)
        is_there = 0 < self._result_bytes(unit) <= written_over
        for value in unit.outputs:
            self._add(value, 0 if is_there else self._local_bytes(value))
        return Operator(
            f"{unit.index} {self._units.graph.opcode_of(unit.root)}",
            strategy.compute_seconds + strategy.communication_seconds,
            tuple(self.number[value] for value in unit.reads) + self._held(unit, held),
            tuple(self.number[value] for value in unit.outputs),
            sum(strategy.buffers_while_running(self._target)),
            unit.may_recompute,
        )

    def _hoisted(self, unit: Unit) -> tuple[Interval, ...]:
        """What is held for a unit from the start of the step on."""
        if not self._with_hoisted:
            return ()
        return hoisted(self._units, unit, self._result_bytes(unit), self._target)

    def _result_bytes(self, unit: Unit) -> int:
        return sum(self._local_bytes(value) for value in unit.outputs)

    def _held(self, unit: Unit, held: Sequence[Interval]) -> tuple[int, ...]:
        """The value that stands for it, if there is any."""
        if not held:
            return ()
        self.values.append(Value(f"hoisted {unit.index}", sum(each.bytes for each in held)))
        return (len(self.values) - 1,)

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
