"""Chains of fused equations: the equations between materialised operands and a value.

The readers of a chain's value compute the chain. How long chains are depends on the compiler
(`Fusion`); see `kiwi.hlo.fusion`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kiwi.hlo.costs import FREE_OPCODES
from kiwi.hlo.distinct_elements import distinct_bytes
from kiwi.hlo.equation_kinds import BARRIER, LAYOUT, REARRANGES, TAKES_EPILOGUE
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.opcodes import MatmulSimplification

MAX_CHAIN = 48
"""The most equations of a chain. Equations that compute nothing, or whose results are narrow
(`Chains._is_narrow`), do not count. The value of a longer chain is materialised."""

MAX_READS = 10
"""The most values that a chain reads. The value of a chain that reads more is materialised."""

OF_VECTORS = 0.04
"""The part of a result's bytes up to which an operand counts as a vector. A larger operand counts
as a tensor."""

OfEquation = Callable[["Chains", int], bool]
"""A property of an equation and the chain before it. Takes the chains and the equation's index."""

Epilogue = Callable[[HloGraph, Sequence[int], Sequence[int]], bool]
"""Whether a library call computes a kernel as its epilogue although other kernels read the call's
result as well. Takes the graph, the equations that the kernel absorbs, and the values that it
reads."""


@dataclass(frozen=True)
class Fusion:
    """The operators that a compiler computes inside other kernels, as far as compilers differ.

    Targets' rules add the entries (`kiwi.targets.rules`). A tuple of properties selects an equation
    if one property holds. Without entries, a costly map is computed once, and stored if several
    kernels read it.

    - `maps`: equations that are fused like maps, although they are not elementwise.
    - `apart`: maps that are not fused with their readers.
    - `in_convolutions`, `in_matmuls`: maps that convolutions or matmuls compute as they read their
      operands.
    - `in_readers`: costly maps that each map or reduction computes again for itself.
    - `sums_in_readers`: additions that each map or reduction computes again for itself.
    - `stored`: maps with several readers that are always stored.
    - `epilogues`: further kernels that a library call computes as its epilogue. A map that alone
      reads the call's result always is one.
    - `repeats_short_chains`: all readers compute a chain that reads next to nothing.
    - `reads_through_layouts`: readers of a transposed or reshaped value read the value itself.
    - `outer_products`, `vector_products`: matmuls that become elementwise operators and reductions
      (`kiwi.hlo.opcodes.MatmulSimplification`).
    - `adds_to_scatters_in_place`: a scatter adds to the result of a library call in place.
    """

    maps: tuple[OfEquation, ...] = ()
    apart: tuple[OfEquation, ...] = ()
    in_convolutions: tuple[OfEquation, ...] = ()
    in_matmuls: tuple[OfEquation, ...] = ()
    in_readers: tuple[OfEquation, ...] = ()
    sums_in_readers: tuple[OfEquation, ...] = ()
    stored: tuple[OfEquation, ...] = ()
    epilogues: tuple[Epilogue, ...] = ()
    repeats_short_chains: bool = False
    reads_through_layouts: bool = False
    outer_products: bool = False
    vector_products: bool = False
    adds_to_scatters_in_place: bool = False

    @property
    def joins_maps_to_matmuls(self) -> bool:
        """Whether matmuls compute the maps before and after them."""
        return bool(self.in_matmuls)

    @property
    def matmul_simplification(self) -> MatmulSimplification:
        """Which matmuls become other operators before anything is fused."""
        return MatmulSimplification(self.outer_products, self.vector_products)


NO_FUSION = Fusion()
"""Fusion without any target's rules: a costly map with several readers is stored."""


class Chains:
    """The equations and the operands of the chain that ends in each equation.

    `is_materialised` is filled by the caller: an equation's entry must exist before its readers are
    added.
    """

    def __init__(self, graph: HloGraph, is_materialised: list[bool], fusion: Fusion) -> None:
        self.graph, self._fusion = graph, fusion
        self._is_materialised = is_materialised
        self._members: dict[int, frozenset[int]] = {}
        self._reads: dict[int, frozenset[int]] = {}

    def add(self, index: int) -> None:
        """Adds the next equation of the program."""
        program = self.graph.program
        members, reads = {index}, set()
        for value in program.equations[index].reads:
            producer = program.values[value].producer
            if producer is None or self._is_materialised[producer]:
                reads.add(value)
            else:
                members |= frozenset() if self._is_free(producer) else self._members[producer]
                reads |= self._reads[producer]
        self._members[index], self._reads[index] = frozenset(members), frozenset(reads)

    def members(self, index: int) -> frozenset[int]:
        """The equations of the chain that ends in an equation."""
        return self._members[index]

    def reads(self, index: int) -> frozenset[int]:
        """The materialised values that the chain reads."""
        return self._reads[index]

    def holds(self, rules: Sequence[OfEquation], index: int) -> bool:
        """Whether one of a target's properties holds for an equation."""
        return any(rule(self, index) for rule in rules)

    def readers(self, index: int) -> tuple[int, ...]:
        """The indices of the equations that read an equation's result, in order.

        With `Fusion.reads_through_layouts`, a transpose or reshape is no kernel of its own, and the
        readers of its result count in its place.
        """
        program = self.graph.program
        direct = program.readers[program.equations[index].outputs[0]]
        if not self._fusion.reads_through_layouts:
            return direct
        # A callback has no opcode, and no result.
        passes = (
            program.equations[k].outputs and self.graph.opcodes[k] <= REARRANGES for k in direct
        )
        through = (
            self.readers(k) if is_passed else (k,)
            for k, is_passed in zip(direct, passes, strict=True)
        )
        return tuple(sorted({k for group in through for k in group}))

    def has_slice(self, index: int) -> bool:
        """Whether the chain takes a slice of an operand."""
        return any("slice" in self.graph.opcodes[member] for member in self._members[index])

    def only_passes(self, index: int) -> bool:
        """Whether the chain passes a tensor through barriers, and at most rearranges it."""
        opcodes = (self.graph.opcodes[member] for member in self._members[index])
        return all(names <= LAYOUT | {BARRIER} for names in opcodes)

    def shifts(self, index: int) -> bool:
        """Whether the chain only scales and shifts, by vectors, one tensor of its result's size.

        False if the equation is the epilogue of the operator that computes the tensor.
        """
        program = self.graph.program
        size = program.values[program.equations[index].outputs[0]].size_bytes
        reads = self._reads[index]
        tensors = [value for value in reads if program.values[value].size_bytes == size]
        vectors = sum(program.values[value].size_bytes for value in reads) - size * len(tensors)
        if len(tensors) != 1 or vectors > OF_VECTORS * size:
            return False
        return not self.ends_call([index], tensors[0])

    def read_alone(self, equations: Collection[int], value: int) -> bool:
        """Whether an equation computes `value`, and only `equations` read the value."""
        producer = self.graph.program.values[value].producer
        return producer is not None and set(self.readers(producer)) <= set(equations)

    def ends_call(self, equations: Collection[int], value: int) -> bool:
        """Whether a matmul, convolution or reduction computes `value`, and only `equations` read
        the value."""
        producer = self.graph.program.values[value].producer
        if producer is None or not self.read_alone(equations, value):
            return False
        return bool(self.graph.opcodes[producer] & TAKES_EPILOGUE)

    def is_as_small(self, index: int, times: float = 1) -> bool:
        """Whether the chain's operands, without vectors, take at most `times` the bytes of its
        result."""
        values = self.graph.program.values
        size = values[self.graph.program.equations[index].outputs[0]].size_bytes
        operands = self.tensors(index)
        return sum(values[value].size_bytes for value in operands) <= times * size

    def tensors(self, index: int) -> list[int]:
        """The indices of the materialised values that the chain reads, without vectors."""
        values = self.graph.program.values
        size = values[self.graph.program.equations[index].outputs[0]].size_bytes
        return [
            value for value in self._reads[index] if values[value].size_bytes > OF_VECTORS * size
        ]

    def _wide_members(self, index: int) -> list[int]:
        """Returns the equations of the chain whose results are not narrow compared with the chain's
        result."""
        equations = self.graph.program.equations
        return [
            member
            for member in self._members[index]
            if not all(self._is_narrow(output, index) for output in equations[member].outputs)
        ]

    def is_narrow(self, index: int) -> bool:
        """Whether the elements of an equation's result repeat those of a vector."""
        return self._is_narrow(self.graph.program.equations[index].outputs[0], index)

    def _is_narrow(self, value: int, index: int) -> bool:
        """Whether a value is narrow compared with an equation's result: its distinct elements
        (`kiwi.hlo.distinct_elements`) take less than `OF_VECTORS` of the result's bytes."""
        outputs = self.graph.program.equations[index].outputs
        size = self.graph.program.values[outputs[0]].size_bytes if outputs else 0
        return distinct_bytes(self.graph)[value] < OF_VECTORS * size

    def _is_free(self, index: int) -> bool:
        """Whether all readers compute the chain, however long it is, because it reads only vectors.

        The chain of random bits is an example: it reads only a key.
        """
        return self._fusion.repeats_short_chains and self.is_as_small(index, 0)

    def too_long(self, index: int) -> bool:
        """Whether the chain exceeds `MAX_CHAIN` or `MAX_READS`, by case 5 of `kiwi.hlo.fusion`.

        Chains that depend on no argument, and chains that all readers compute, are never too long.
        """
        if self.graph.equations[index].is_constant or self._is_free(index):
            return False
        if len(self._reads[index]) > MAX_READS:
            return True
        if len(self._members[index]) <= MAX_CHAIN:
            return False
        computing = (k for k in self._wide_members(index) if self.graph.opcodes[k] - FREE_OPCODES)
        return len(list(computing)) > MAX_CHAIN
