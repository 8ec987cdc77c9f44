"""The number of times that a kernel emits each instruction that is fused into it.

A kernel emits an instruction once for every index at which the instruction's readers need it.
Elementwise operators and transposes read their operands at their own index. Other operators
(slices, pads, concatenations, broadcasts) read them at a new index. XLA:GPU counts in this way and
limits the count (`FusionNodeIndexingEvaluation`).
"""

from collections.abc import Collection

from kiwi.hlo.chains import OF_VECTORS
from kiwi.hlo.distinct_elements import distinct_bytes
from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.graph import HloGraph


class EmittedInstructions:
    """The kernels of a graph in which maps are fused with their readers.

    - `stored`: the indices of the maps that are not fused, but have kernels of their own.
    """

    def __init__(self, graph: HloGraph, stored: Collection[int]) -> None:
        self._graph = graph
        equations = graph.program.equations
        self._is_fused = [is_map(graph, equation.index) for equation in equations]
        for index in stored:
            self._is_fused[index] = False
        # The bytes of distinct elements are compared with the value's own bytes. `Chains` compares
        # them with the bytes of the chain's result, so that small tensors are narrow there as well.
        pairs = zip(distinct_bytes(graph), graph.program.values, strict=True)
        self._is_repeated = [distinct < OF_VECTORS * value.size_bytes for distinct, value in pairs]

    def fuse(self, index: int, *, is_fused: bool) -> None:
        """Sets whether a map is fused with its readers."""
        self._is_fused[index] = is_fused

    def kernels_reading(self, index: int) -> set[int]:
        """Returns the equations at the end of the kernels that emit a map if it is fused."""
        program = self._graph.program
        kernels, seen, pending = set(), set(), [index]
        while pending:
            for reader in program.readers[program.equations[pending.pop()].outputs[0]]:
                if not self._is_fused[reader]:
                    kernels.add(reader)
                elif reader not in seen:
                    seen.add(reader)
                    pending.append(reader)
        return kernels

    def evaluations(self, root: int) -> dict[int, int]:
        """Returns, for each map in the kernel that ends in `root`, the number of times that the
        kernel emits the map.

        Maps of values whose elements a broadcast repeats are left out: XLA computes them before the
        broadcast, in kernels of their own.
        """
        program = self._graph.program
        members = self._members(root)
        indexed_by: dict[int, set[int]] = {}
        evaluations = {root: 1}
        for member in sorted(members, reverse=True):
            users = indexed_by.get(member, {root})
            if member != root:
                evaluations[member] = sum(evaluations[user] for user in users)
            is_transposed = self._graph.opcodes[member] == {"transpose"}
            outputs = program.equations[member].outputs
            shape = program.values[outputs[0]].shape if outputs else None
            for operand in program.equations[member].reads:
                producer = program.values[operand].producer
                if producer in members:
                    shares = is_transposed or program.values[operand].shape == shape
                    indexed_by.setdefault(producer, set()).update(users if shares else {member})
        return evaluations

    def is_from_tensors(self, index: int) -> bool:
        """Whether the stored operands of a map's kernel take at least half of the bytes of the
        map's result. Operands whose elements a broadcast repeats do not count."""
        program = self._graph.program
        members = self._members(index)
        operands = {value for member in members for value in program.equations[member].reads}
        stored = (value for value in operands if program.values[value].producer not in members)
        tensors = (value for value in stored if not self._is_repeated[value])
        stored_bytes = sum(program.values[value].size_bytes for value in tensors)
        return 2 * stored_bytes >= program.values[program.equations[index].outputs[0]].size_bytes

    def _members(self, root: int) -> set[int]:
        """Returns the equations of the kernel that ends in `root`, without equations whose elements
        a broadcast repeats."""
        program = self._graph.program
        members, pending = {root}, [root]
        while pending:
            for operand in program.equations[pending.pop()].reads:
                producer = program.values[operand].producer
                if producer is None or producer in members or self._is_repeated[operand]:
                    continue
                if self._is_fused[producer]:
                    members.add(producer)
                    pending.append(producer)
        return members
