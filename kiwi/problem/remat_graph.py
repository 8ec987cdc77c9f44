"""The `RematGraph` of a unit graph: recomputation alone, for given layouts.

Operators are units, in execution order, so that a schedule of the graph is a schedule of
units. Sizes are those of `kiwi.problem.unit_memory`. Live ranges follow `kiwi.memory.live_ranges`,
except that results are not overwritten in place: arguments and fresh results of the function are
resident throughout, and a result that takes over a donated argument's buffer needs no memory of its
own. An update that overwrites a donated argument waits for all other readers of it, by values of no
bytes. Buffers that the compiler holds from the start of the step on until a unit runs are resident
throughout, which is more than that.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from kiwi.hlo.graph import Phase
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import DeviceMesh
from kiwi.problem.build import PlanningProblem
from kiwi.problem.scheduled import read_resharding_seconds
from kiwi.problem.solved import Solved
from kiwi.problem.strategies import ShardingStrategy
from kiwi.problem.strategy_table import StrategyTable
from kiwi.problem.unit_memory import UnitMemory, unit_memory
from kiwi.solver.remat import Operator, RematGraph, Value
from kiwi.xla.rules.base import Rules


def remat_graph(
    units: UnitGraph,
    strategies: Sequence[ShardingStrategy],
    rules: Rules,
    fence_bytes: int = 0,
) -> RematGraph:
    """The graph of one device, on which unit u runs under `strategies[u]`.

    Time is that of computation, in seconds. `rules` are the compiler's, as for the strategies.
    `fence_bytes` are resident beside what the units need: what keeps the program to a schedule.
    """
    values = units.graph.program.values
    memories = _memories(units, strategies, rules)
    graph = _Builder(units, strategies, memories, lambda v: values[v].size_bytes).graph()
    return replace(graph, values=(*graph.values, Value("fences", fence_bytes)))


def _memories(
    units: UnitGraph, strategies: Sequence[ShardingStrategy], rules: Rules
) -> list[UnitMemory]:
    pairs = zip(units.units, strategies, strict=True)
    return [unit_memory(units, unit, strategy, rules) for unit, strategy in pairs]


def sharded_remat_graph(solved: Solved) -> RematGraph:
    """The graph of one device's part of a sharded step, without opened loops.

    Time is that of computation and collectives. An operand that is expected in another layout
    than the stored one is resharded by its reader, whenever that runs, and the copy held
    meanwhile: as MAP adds communication to chains (Liu et al., 2023, table 2), but paid again where
    a stage is computed again, as it is when the program runs. Left out is what is communicated once
    whatever the schedule: the resharding of results into the layouts that the caller wants.
    """
    planning, layouts = solved.problem, solved.layouts
    units = planning.units
    strategies = [strategy for strategy, _ in solved.choices]

    def local_bytes(value: int) -> int:
        return planning.local_bytes(value, layouts[value])

    memories = _memories(units, strategies, planning.rules)
    graph = _Builder(units, strategies, memories, local_bytes).graph()
    copied_bytes = [0] * len(units.units)
    for buffer in solved.restricted.buffers:
        if buffer.kind == "copy":
            copied_bytes[buffer.index] += buffer.bytes
    communication = zip(read_resharding_seconds(solved), copied_bytes, strict=True)
    operators = tuple(
        replace(
            each,
            compute_seconds=each.compute_seconds + seconds,
            temporary_bytes=each.temporary_bytes + copied,
        )
        for each, (seconds, copied) in zip(graph.operators, communication, strict=True)
    )
    return replace(graph, operators=operators)


def smallest_remat_graph(planning: PlanningProblem) -> RematGraph:
    """The graph with each value, and the workspace of each unit, as small as any sharding makes it.

    No sharding of the step without opened loops has a smaller working set than this graph's.
    What is hoisted is left out: it is not there for the whole step.
    """
    units = planning.units
    strategies = [
        min(node.strategies, key=lambda strategy: sum(strategy.buffers_while_running))
        for node in planning.unit_nodes
    ]

    @functools.cache
    def local_bytes(value: int) -> int:
        return min(planning.local_bytes(value, layout) for layout in set(planning.stored[value][1]))

    memories = [
        replace(m, from_start=(), written_over_bytes=0)
        for m in _memories(units, strategies, planning.rules)
    ]
    return _Builder(units, strategies, memories, local_bytes).graph()


def one_device_strategies(
    units: UnitGraph, mesh: DeviceMesh, rules: Rules
) -> tuple[ShardingStrategy, ...]:
    """The cheapest strategy of each unit by itself; on a mesh of one device there is just one."""
    table = StrategyTable(units, mesh, rules)
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
        memories: Sequence[UnitMemory],
        local_bytes: Callable[[int], int],
    ) -> None:
        self._units, self._strategies, self._memories = units, strategies, memories
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
        strategy, memory = self._strategies[unit.index], self._memories[unit.index]
        # A result that is written over what was held before needs no memory of its own.
        is_there = 0 < memory.result_bytes <= memory.written_over_bytes
        for value in unit.outputs:
            self._add(value, 0 if is_there else self._local_bytes(value))
        return Operator(
            f"{unit.index} {self._units.graph.opcode_of(unit.root)}",
            strategy.compute_seconds + strategy.communication_seconds,
            tuple(self.number[value] for value in unit.reads) + self._from_start(unit),
            tuple(self.number[value] for value in unit.outputs),
            memory.workspace_bytes,
            unit.may_recompute,
        )

    def _from_start(self, unit: Unit) -> tuple[int, ...]:
        """The value that stands for the buffers held from the start of the step on, if any."""
        size = sum(each.bytes for each in self._memories[unit.index].from_start)
        if size:
            self.values.append(Value(f"held from the start {unit.index}", size))
        return (len(self.values) - 1,) if size else ()

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
