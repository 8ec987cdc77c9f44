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
from kiwi.mesh import TensorSharding
from kiwi.problem.build import PlanningProblem
from kiwi.problem.unit_memory import unit_memory
from kiwi.solver.formulations import Operator, Read, ShardedGraph, Tie


def sharded_graph(planning: PlanningProblem) -> ShardedGraph:
    """Operator `len(planning.sources) + u` is unit u; strategies are those of its node."""
    return _Builder(planning).graph()


class _Builder:
    """Layouts of values by the node that yields them."""

    def __init__(self, planning: PlanningProblem) -> None:
        self._planning = planning
        self._program = planning.units.graph.program
        self._first = len(planning.sources)
        self._layouts: dict[int, tuple[int, list[TensorSharding]]] = {
            source.value: (k, list(source.shardings)) for k, source in enumerate(planning.sources)
        }
        for node in planning.unit_nodes:
            for position, value in enumerate(planning.units.units[node.unit].outputs):
                layouts = [s.results[position] for s in node.strategies]
                self._layouts[value] = (self._first + node.unit, layouts)

    def graph(self) -> ShardedGraph:
        """All pieces."""
        planning = self._planning
        returned = {r for r in self._program.results if isinstance(r, int)}
        results = frozenset(self._layouts[r][0] for r in returned if r in planning.units.producer)
        operators = (*self._parameters(), *self._operators())
        return ShardedGraph(operators, tuple(self._reads()), tuple(self._ties()), results)

    def _parameters(self) -> Iterator[Operator]:
        for source in self._planning.sources:
            local = tuple(self._planning.local_bytes(source.value, s) for s in source.shardings)
            none = (0,) * len(local)
            name = f"argument {source.value}"
            yield Operator(name, (0.0,) * len(local), local, none, is_parameter=True)

    def _operators(self) -> Iterator[Operator]:
        graph = self._planning.units.graph
        for node in self._planning.unit_nodes:
            unit = self._planning.units.units[node.unit]
            rules = self._planning.rules
            sizes = [unit_memory(self._planning.units, unit, s, rules) for s in node.strategies]
            once = np.zeros(len(node.strategies))
            for position, wanted in self._planning.fixed.results.items():
                value = self._program.results[position]
                carried = position in self._planning.fixed.carried
                if isinstance(value, int) and value in unit.outputs and not carried:
                    once += self._seconds(value, self._layouts[value][1], [wanted])[:, 0]
            yield Operator(
                f"unit {node.unit} ({graph.opcode_of(unit.root)})",
                tuple(s.compute_seconds + s.communication_seconds for s in node.strategies),
                tuple(size.result_bytes for size in sizes),
                tuple(size.workspace_bytes + size.beside_bytes for size in sizes),
                tuple(map(float, once)),
                is_forward=unit.phase is Phase.FORWARD,
                may_recompute=unit.may_recompute,
            )

    def _reads(self) -> Iterator[Read]:
        """One for each pair of nodes: the matrices of several values add up."""
        found: dict[tuple[int, int], np.ndarray] = {}
        for node in self._planning.unit_nodes:
            head = self._first + node.unit
            for read, (value, _) in enumerate(self._planning.units.units[node.unit].rule.reads):
                tail, stored = self._layouts[value]
                seconds = self._seconds(value, stored, [s.reads[read] for s in node.strategies])
                found[tail, head] = found.get((tail, head), 0.0) + seconds
        return (Read(*pair, seconds) for pair, seconds in found.items())

    def _ties(self) -> Iterator[Tie]:
        """From an argument to what replaces it in the next step."""
        for position, argument in self._planning.fixed.carried.items():
            value = self._program.results[position]
            if isinstance(value, int) and value in self._planning.units.producer:
                first, kept = self._layouts[argument]
                second, yielded = self._layouts[value]
                yield Tie(first, second, self._seconds(value, yielded, kept).T)

    def _seconds(
        self, value: int, stored: list[TensorSharding], wanted: list[TensorSharding]
    ) -> np.ndarray:
        return self._planning.resharding_table(value).seconds_matrix(stored, wanted)
