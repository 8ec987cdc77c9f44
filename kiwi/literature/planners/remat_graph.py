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
from kiwi.hlo.units import UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.literature.remat import Operator, RematGraph, Value
from kiwi.mesh import DeviceMesh
from kiwi.problem.build import PlanningProblem
from kiwi.problem.scheduled import read_resharding_seconds
from kiwi.problem.solved import Solved
from kiwi.problem.strategies import ShardingStrategy
from kiwi.problem.strategy_table import StrategyTable
from kiwi.problem.unit_memory import UnitMemory, unit_memory


def remat_graph(
    kernels: KernelGraph, strategies: Sequence[ShardingStrategy], fence_bytes: int = 0
) -> RematGraph:
    """The graph of one device, on which unit u runs under `strategies[u]`.

    Time is that of computation, in seconds. `fence_bytes` are resident
    beside what the units need: what keeps the program to a schedule.
    """
    units = kernels.units
    values = units.graph.program.values
    memories = _memories(kernels, strategies)
    graph = _graph(units, strategies, memories, lambda v: values[v].size_bytes)
    return replace(graph, values=(*graph.values, Value("fences", fence_bytes)))


def _memories(kernels: KernelGraph, strategies: Sequence[ShardingStrategy]) -> list[UnitMemory]:
    pairs = zip(kernels.units.units, strategies, strict=True)
    return [unit_memory(kernels, unit, strategy) for unit, strategy in pairs]


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

    memories = _memories(planning.kernels, strategies)
    graph = _graph(units, strategies, memories, local_bytes)
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
    Hoisted values are left out: they do not live for the whole step.
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
        for m in _memories(planning.kernels, strategies)
    ]
    return _graph(units, strategies, memories, local_bytes)


def one_device_strategies(kernels: KernelGraph, mesh: DeviceMesh) -> tuple[ShardingStrategy, ...]:
    """The cheapest strategy of each unit by itself; on a mesh of one device there is just one."""
    table = StrategyTable(kernels, mesh)
    units = kernels.units.units
    return tuple(min(table.of(unit), key=lambda strategy: strategy.seconds) for unit in units)


def _graph(
    units: UnitGraph,
    strategies: Sequence[ShardingStrategy],
    memories: Sequence[UnitMemory],
    local_bytes: Callable[[int], int],
) -> RematGraph:
    """The graph's values are those of the program, by their index, and others by name."""
    held, inputs, outputs = _held(units, memories, local_bytes)
    for result, argument in units.aliased_results.items():
        update = units.producer[result]
        for reader in units.readers.get(argument, ()):
            if reader < update:
                order = f"order {reader} {update} of {argument}"
                held[order] = 0
                outputs[reader].append(order)
                inputs[update].append(order)
    number = {key: k for k, key in enumerate(held)}
    operators = (
        Operator(
            f"{unit.index} {units.graph.opcode_of(unit.root)}",
            strategies[unit.index].seconds,
            tuple(number[key] for key in inputs[unit.index]),
            tuple(number[key] for key in outputs[unit.index]),
            memories[unit.index].workspace_bytes,
            unit.may_recompute,
        )
        for unit in units.units
    )
    return RematGraph(
        tuple(operators),
        tuple(Value(k if isinstance(k, str) else f"value {k}", size) for k, size in held.items()),
        tuple(range(len(units.units))),
        frozenset(number[value] for value in _returned(units)),
        _backward_of(units),
    )


def _returned(units: UnitGraph) -> list[int]:
    """The results of the function that units compute."""
    results = {r for r in units.graph.program.results if isinstance(r, int)}
    return sorted(r for r in results if r in units.producer)


def _held(
    units: UnitGraph, memories: Sequence[UnitMemory], local_bytes: Callable[[int], int]
) -> tuple[dict[int | str, int], list[list[int | str]], list[list[int | str]]]:
    """The bytes of each value, and for each unit the values that it reads and that it yields."""
    program, returned = units.graph.program, _returned(units)

    def size(value: int) -> int:
        return 0 if value in program.host_values else local_bytes(value)

    held: dict[int | str, int] = {v: size(v) for v in (*program.arguments, *program.constants)}
    held["results"] = sum(size(r) for r in returned if r not in units.aliased_results)
    held.update(dict.fromkeys(returned, 0))
    inputs: list[list[int | str]] = [[*unit.reads] for unit in units.units]
    for unit, memory in zip(units.units, memories, strict=True):
        # A result that is written over what was held before needs no memory of its own.
        is_there = 0 < memory.result_bytes <= memory.written_over_bytes
        for value in unit.outputs:
            held.setdefault(value, 0 if is_there else size(value))
        early_bytes = sum(each.bytes for each in memory.from_start)
        if early_bytes:
            early = f"held from the start {unit.index}"
            held[early] = early_bytes
            inputs[unit.index].append(early)
    return held, inputs, [[*unit.outputs] for unit in units.units]


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
