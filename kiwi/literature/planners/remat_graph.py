"""The `RematGraph` of a unit graph: recomputation alone, for given layouts.

The graph's operators are the units, in execution order, so that a schedule of the graph is a
schedule of units. Sizes come from `kiwi.problem.unit_memory`. Live ranges follow
`kiwi.memory.live_ranges`, except that results do not overwrite operands in place. Arguments and
fresh results of the function are resident throughout. A result that takes over a donated argument's
buffer needs no memory of its own. An update that overwrites a donated argument waits for all other
readers of the argument; values of zero bytes express this order. A buffer that the compiler holds
from the start of the step until a unit runs is resident throughout, which is an overestimate.
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
    """Returns the graph of one device, on which unit u runs under `strategies[u]`.

    Times are the seconds of computation. `fence_bytes` are resident in addition: the memory of the
    fences that keep the program to a schedule.
    """
    units = kernels.units
    values = units.graph.program.values
    memories = _memories(kernels, strategies)
    graph = _graph(units, strategies, memories, lambda value: values[value].size_bytes)
    return replace(graph, values=(*graph.values, Value("fences", fence_bytes)))


def _memories(kernels: KernelGraph, strategies: Sequence[ShardingStrategy]) -> list[UnitMemory]:
    pairs = zip(kernels.units.units, strategies, strict=True)
    return [unit_memory(kernels, unit, strategy) for unit, strategy in pairs]


def sharded_remat_graph(solved: Solved) -> RematGraph:
    """Returns the graph of one device's part of a sharded step, without opened loops.

    Times are the seconds of computation and collectives. An operand whose expected layout differs
    from the stored one is resharded by its reader, whenever the reader runs. The copy is held while
    the reader runs. MAP adds communication to chains in this way (Liu et al., 2023, table 2). Here
    a stage that is computed again pays for its communication again, as the program does. The graph
    leaves out communication that happens once under any schedule: the resharding of results into
    the layouts that the caller wants.
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
            operator,
            compute_seconds=operator.compute_seconds + seconds,
            temporary_bytes=operator.temporary_bytes + copied,
        )
        for operator, (seconds, copied) in zip(graph.operators, communication, strict=True)
    )
    return replace(graph, operators=operators)


def smallest_remat_graph(planning: PlanningProblem) -> RematGraph:
    """Returns the graph in which values and workspaces are as small as any sharding makes them.

    No sharding of the step without opened loops has a smaller working set than this graph. Hoisted
    values are left out, because they do not live for the whole step.
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
        replace(memory, from_start=(), written_over_bytes=0)
        for memory in _memories(planning.kernels, strategies)
    ]
    return _graph(units, strategies, memories, local_bytes)


def one_device_strategies(kernels: KernelGraph, mesh: DeviceMesh) -> tuple[ShardingStrategy, ...]:
    """Returns the cheapest strategy of each unit by itself. On a mesh of one device a unit has just
    one."""
    table = StrategyTable(kernels, mesh)
    units = kernels.units.units
    return tuple(min(table.of(unit), key=lambda strategy: strategy.seconds) for unit in units)


def _graph(
    units: UnitGraph,
    strategies: Sequence[ShardingStrategy],
    memories: Sequence[UnitMemory],
    local_bytes: Callable[[int], int],
) -> RematGraph:
    """Returns the graph of `units`. Values of the program have their index as key, others a
    name."""
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
        tuple(
            Value(key if isinstance(key, str) else f"value {key}", size)
            for key, size in held.items()
        ),
        tuple(range(len(units.units))),
        frozenset(number[value] for value in _returned(units)),
        _backward_of(units),
    )


def _returned(units: UnitGraph) -> list[int]:
    """Returns the results of the function that are computed by units, in ascending order."""
    results = {result for result in units.graph.program.results if isinstance(result, int)}
    return sorted(result for result in results if result in units.producer)


def _held(
    units: UnitGraph, memories: Sequence[UnitMemory], local_bytes: Callable[[int], int]
) -> tuple[dict[int | str, int], list[list[int | str]], list[list[int | str]]]:
    """Returns the bytes of each value, and the values that each unit reads and writes."""
    program, returned = units.graph.program, _returned(units)

    def size(value: int) -> int:
        return 0 if value in program.host_values else local_bytes(value)

    held: dict[int | str, int] = {
        resident: size(resident) for resident in (*program.arguments, *program.constants)
    }
    held["results"] = sum(
        size(result) for result in returned if result not in units.aliased_results
    )
    held.update(dict.fromkeys(returned, 0))
    inputs: list[list[int | str]] = [[*unit.reads] for unit in units.units]
    for unit, memory in zip(units.units, memories, strict=True):
        # A result that overwrites memory held before needs no memory of its own.
        is_there = 0 < memory.result_bytes <= memory.written_over_bytes
        for value in unit.outputs:
            held.setdefault(value, 0 if is_there else size(value))
        early_bytes = sum(buffer.bytes for buffer in memory.from_start)
        if early_bytes:
            early = f"held from the start {unit.index}"
            held[early] = early_bytes
            inputs[unit.index].append(early)
    return held, inputs, [[*unit.outputs] for unit in units.units]


def _backward_of(units: UnitGraph) -> tuple[tuple[int, int], ...]:
    """Returns each backward unit paired with the latest forward unit whose results it reads."""
    pairs = []
    for unit in units.units:
        if unit.phase is Phase.BACKWARD:
            writers = [units.producer[value] for value in unit.reads if value in units.producer]
            forward = [writer for writer in writers if units.units[writer].phase is Phase.FORWARD]
            if forward:
                pairs.append((max(forward), unit.index))
    return tuple(pairs)
