"""The `ShardedGraph` of a planning problem: what the paper's formulations choose for.

Arguments and constants become parameters, resident throughout; units become operators, in order.
Sizes are those of `kiwi.problem.unit_memory`; buffers that the compiler holds from the start of the
step on count while their unit runs. These models do not know copies of resharded operands, nor
results that overwrite an operand or take over a donated argument's buffer. Their plans are
estimated, and compiled, as any other.
"""

from collections.abc import Iterator

import numpy as np

from kiwi.hlo.graph import Phase
from kiwi.problem.build import PlanningProblem
from kiwi.problem.unit_memory import unit_memory
from kiwi.solver.formulations import Operator, Read, ShardedGraph, Tie


def sharded_graph(planning: PlanningProblem) -> ShardedGraph:
    """Operator `len(planning.sources) + u` is unit u; strategies are those of its node."""
    results = frozenset(r for r in planning.units.graph.program.results if isinstance(r, int))
    returned = frozenset(planning.stored[r][0] for r in results if r in planning.units.producer)
    operators = (*_parameters(planning), *_operators(planning))
    return ShardedGraph(operators, tuple(_reads(planning)), tuple(_ties(planning)), returned)


def _parameters(planning: PlanningProblem) -> Iterator[Operator]:
    for source in planning.sources:
        local = tuple(planning.local_bytes(source.value, s) for s in source.shardings)
        none = (0,) * len(local)
        name = f"argument {source.value}"
        yield Operator(name, (0.0,) * len(local), local, none, is_parameter=True)


def _operators(planning: PlanningProblem) -> Iterator[Operator]:
    for node in planning.unit_nodes:
        unit = planning.units.units[node.unit]
        sizes = [
            unit_memory(planning.units, unit, strategy, planning.rules, planning.mesh.size)
            for strategy in node.strategies
        ]
        yield Operator(
            f"unit {node.unit} ({planning.units.graph.opcode_of(unit.root)})",
            tuple(s.seconds for s in node.strategies),
            tuple(size.result_bytes for size in sizes),
            tuple(size.workspace_bytes + size.beside_bytes for size in sizes),
            tuple(map(float, planning.result_seconds(node))),
            is_forward=unit.phase is Phase.FORWARD,
            may_recompute=unit.may_recompute,
        )


def _reads(planning: PlanningProblem) -> Iterator[Read]:
    """One for each pair of nodes: the matrices of several values add up."""
    found: dict[tuple[int, int], np.ndarray] = {}
    for head, node in enumerate(planning.unit_nodes, start=len(planning.sources)):
        for read, (value, _) in enumerate(planning.units.units[node.unit].rule.reads):
            (tail, stored), wanted = (
                planning.stored[value],
                [s.reads[read] for s in node.strategies],
            )
            seconds = planning.operand(planning.units.units[node.unit], value).table.seconds_matrix(
                stored, wanted
            )
            found[tail, head] = found.get((tail, head), 0.0) + seconds
    return (Read(*pair, seconds) for pair, seconds in found.items())


def _ties(planning: PlanningProblem) -> Iterator[Tie]:
    """From an argument to what replaces it in the next step; loops are none of these models'."""
    for argument, value, _ in planning.carried():
        (first, kept), (second, yielded) = planning.stored[argument], planning.stored[value]
        if first < len(planning.sources) <= second:
            seconds = planning.resharding_table(value).seconds_matrix(yielded, kept)
            yield Tie(first, second, seconds.T)
