"""What lies between materialised operands and a value that is fused, and which readers compute it.

How far that goes differs between compilers (`Fusion`); see `kiwi.hlo.fusion`.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kiwi.hlo.equation_kinds import BARRIER, LAYOUT, REARRANGES, TAKES_EPILOGUE
from kiwi.hlo.graph import HloGraph

MAX_CHAIN = 48
MAX_READS = 10

OF_VECTORS = 0.04
"""Up to which part of a tensor's bytes what is added to it counts as vectors."""

OfEquation = Callable[["Chains", int], bool]
"""Whether something holds of an equation, by its number, and the chain in front of it."""

Epilogue = Callable[[HloGraph, Sequence[int], Sequence[int]], bool]
"""Whether a kernel ends a library call whose result it does not read alone. Takes the equations
that the kernel absorbs, and the values that it reads."""


@dataclass(frozen=True)
class Fusion:
    """What a compiler computes inside of other kernels, as far as compilers differ.

    Targets' rules add the entries (`kiwi.targets.rules`). Without any, a costly map is computed
    once and stored if several kernels read it.

    - `maps`: equations that are fused as maps are, although they are none of elements.
    - `apart`: maps that are not fused with what reads them.
    - `in_convolutions`, `in_matmuls`: maps that convolutions or matmuls compute as they read them.
    - `in_readers`: costly maps that each map and reduction that reads them computes again.
    - `sums_in_readers`: additions of which the same holds.
    - `stored`: maps with several readers that are stored in any case.
    - `epilogues`: what ends a library call beside the maps that alone read its result.
    - `repeats_short_chains`: chains that read next to nothing are computed by all that read them.
    - `reads_through_layouts`: who reads a transposed or reshaped value reads the value itself.
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
    adds_to_scatters_in_place: bool = False

    @property
    def joins_maps_to_matmuls(self) -> bool:
        """Whether matmuls compute the maps in front of them and behind them."""
        return bool(self.in_matmuls)


NO_FUSION = Fusion()
"""A costly map is fused with one reader alone."""


class Chains:
    """The equations and inputs of the chain in front of each absorbed value."""

    def __init__(self, graph: HloGraph, is_materialised: list[bool], fusion: Fusion) -> None:
        self.graph, self._fusion = graph, fusion
        self._is_materialised = is_materialised
        self._members: dict[int, frozenset[int]] = {}
        self._reads: dict[int, frozenset[int]] = {}

    def add(self, index: int) -> None:
        """Notes the next equation, of whose producers it is known what is materialised."""
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
        """Whether one of a target's rules holds of an equation."""
        return any(rule(self, index) for rule in rules)

    def readers(self, index: int) -> tuple[int, ...]:
        """What reads an equation's result; where matmuls compute maps, transposed and reshaped,
        too, as that is no kernel of its own there."""
        program = self.graph.program
        found = program.readers[program.equations[index].outputs[0]]
        if not self._fusion.reads_through_layouts:
            return found
        through = (self.readers(k) if self.graph.opcodes[k] <= REARRANGES else (k,) for k in found)
        return tuple(sorted({k for each in through for k in each}))

    def has_slice(self, index: int) -> bool:
        """Whether the chain takes a part of what it reads."""
        return any("slice" in self.graph.opcodes[member] for member in self._members[index])

    def only_passes(self, index: int) -> bool:
        """Whether the chain passes a tensor through barriers, and at most rearranges it."""
        found = (self.graph.opcodes[member] for member in self._members[index])
        return all(names <= LAYOUT | {BARRIER} for names in found)

    def shifts(self, index: int) -> bool:
        """Whether the chain only scales and shifts, by vectors, one tensor of its result's size.

        Not if the equation is the epilogue of what is there for nothing else.
        """
        program = self.graph.program
        size = program.values[program.equations[index].outputs[0]].size_bytes
        reads = self._reads[index]
        tensors = [value for value in reads if program.values[value].size_bytes == size]
        vectors = sum(program.values[value].size_bytes for value in reads) - size * len(tensors)
        if len(tensors) != 1 or vectors > OF_VECTORS * size:
            return False
        return not self.ends_call([index], tensors[0])

    def ends_call(self, equations: Collection[int], value: int) -> bool:
        """Whether these equations alone read a matmul's, convolution's or reduction's result."""
        producer = self.graph.program.values[value].producer
        if producer is None or not set(self.readers(producer)) <= set(equations):
            return False
        return bool(self.graph.opcodes[producer] & TAKES_EPILOGUE)

    def is_as_small(self, index: int, times: float = 1) -> bool:
        """Whether the chain's operands take at most so many times the bytes of its result, vectors
        apart."""
        values = self.graph.program.values
        size = values[self.graph.program.equations[index].outputs[0]].size_bytes
        read = self.tensors(index)
        return sum(values[v].size_bytes for v in read) <= times * size

    def tensors(self, index: int) -> list[int]:
        """The operands of the chain without vectors."""
        values = self.graph.program.values
        size = values[self.graph.program.equations[index].outputs[0]].size_bytes
        return [v for v in self._reads[index] if values[v].size_bytes > OF_VECTORS * size]

    def _is_free(self, index: int) -> bool:
        """Whether all that read the chain compute it, however long it is: it reads next to nothing,
        as that of random bits, which are made of a key."""
        return self._fusion.repeats_short_chains and self.is_as_small(index, 0)

    def too_long(self, index: int) -> bool:
        """Whether case 5 holds."""
        if self.graph.equations[index].is_constant or self._is_free(index):
            return False
        return len(self._members[index]) > MAX_CHAIN or len(self._reads[index]) > MAX_READS
