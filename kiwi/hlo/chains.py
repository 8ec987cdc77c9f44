"""What lies between materialised operands and a value that is fused, and which readers compute it.

How far that goes differs between compilers (`FusedMaps`); see `kiwi.hlo.fusion`.
"""

import enum
from collections.abc import Collection

from kiwi.hlo.equation_kinds import (
    BARRIER,
    LAYOUT,
    REARRANGES,
    TAKES_EPILOGUE,
    WINDOWED,
    interleaves,
    is_map,
    is_of_matrices,
    repeats,
    sets_one_per_row,
)
from kiwi.hlo.graph import HloGraph, Phase
from kiwi.hlo.program import Value

MAX_CHAIN = 48
MAX_READS = 10

_OF_VECTORS = 0.04
"""Up to which part of a tensor's bytes what is added to it counts as vectors."""

_OF_PRODUCTS = 0.5
"""Up to which part of a tensor's bytes operands are much smaller."""

_OF_SOFTMAX = frozenset({"convert_element_type", "sub", "exp", "broadcast_in_dim", "stop_gradient"})
"""What `jax.nn.softmax` does with scores of a narrower type up to its exponential."""


_NOT_REPEATED = frozenset({"concatenate", "cosine", "reverse", "sine", "slice", "tan"})
"""What XLA:TPU does not fuse with convolutions that read it."""


class FusedMaps(enum.Enum):
    """Which costly maps a compiler fuses.

    - `OF_ONE_READER`: with a single reader.
    - `OF_MAPS`: also with several maps and reductions, each of which computes them again.
    - `OF_MATMULS`: also with matmuls that read them, and with library calls that they alone read.
    """

    OF_ONE_READER = enum.auto()
    OF_MAPS = enum.auto()
    OF_MATMULS = enum.auto()


class Chains:
    """The equations and inputs of the chain in front of each absorbed value."""

    def __init__(self, graph: HloGraph, is_materialised: list[bool], fused: FusedMaps) -> None:
        self._graph, self._fused = graph, fused
        self._is_of_matmuls = fused is FusedMaps.OF_MATMULS
        self._is_materialised = is_materialised
        self._members: dict[int, frozenset[int]] = {}
        self._reads: dict[int, frozenset[int]] = {}

    def add(self, index: int) -> None:
        """Notes the next equation, of whose producers it is known what is materialised."""
        program = self._graph.program
        members, reads = {index}, set()
        for value in program.equations[index].reads:
            producer = program.values[value].producer
            if producer is None or self._is_materialised[producer]:
                reads.add(value)
            else:
                members |= frozenset() if self._is_free(producer) else self._members[producer]
                reads |= self._reads[producer]
        self._members[index], self._reads[index] = frozenset(members), frozenset(reads)

    def readers(self, index: int) -> tuple[int, ...]:
        """What reads an equation's result; where matmuls compute maps, transposed and reshaped,
        too, as that is no kernel of its own there."""
        program = self._graph.program
        found = program.readers[program.equations[index].outputs[0]]
        if not self._is_of_matmuls:
            return found
        through = (self.readers(k) if self._graph.opcodes[k] <= REARRANGES else (k,) for k in found)
        return tuple(sorted({k for each in through for k in each}))

    def has_slice(self, index: int) -> bool:
        """Whether the chain takes a part of what it reads."""
        return any("slice" in self._graph.opcodes[member] for member in self._members[index])

    def only_passes(self, index: int) -> bool:
        """Whether the chain passes a tensor through barriers, and at most rearranges it."""
        found = (self._graph.opcodes[member] for member in self._members[index])
        return all(names <= LAYOUT | {BARRIER} for names in found)

    def shifts(self, index: int) -> bool:
        """Whether the chain only scales and shifts, by vectors, one tensor of its result's size.

        Not if the equation is the epilogue of what is there for nothing else.
        """
        program = self._graph.program
        size = program.values[program.equations[index].outputs[0]].size_bytes
        reads = self._reads[index]
        tensors = [value for value in reads if program.values[value].size_bytes == size]
        vectors = sum(program.values[value].size_bytes for value in reads) - size * len(tensors)
        if len(tensors) != 1 or vectors > _OF_VECTORS * size:
            return False
        return not self._ends_call([index], tensors[0])

    def _ends_call(self, equations: Collection[int], value: int) -> bool:
        """Whether these equations alone read a matmul's, convolution's or reduction's result."""
        producer = self._graph.program.values[value].producer
        if producer is None or not set(self.readers(producer)) <= set(equations):
            return False
        return bool(self._graph.opcodes[producer] & TAKES_EPILOGUE)

    def expands(self, index: int) -> bool:
        """Whether all readers make a tensor for themselves, of others that are much smaller; on
        GPUs, whether they put elements between others, as the halves of an associative scan."""
        if self._fused is FusedMaps.OF_MAPS:
            program = self._graph.program
            producers = [program.values[v].producer for v in program.equations[index].reads]
            return all(k is not None and interleaves(program.equations[k]) for k in producers)
        return self._is_of_matmuls and self._is_as_small(index, _OF_PRODUCTS)

    def in_readers(self, index: int) -> bool:
        """Whether maps and reductions that read the chain compute it."""
        return self._fused is not FusedMaps.OF_ONE_READER and self._is_as_small(index)

    def in_matmuls(self, index: int) -> bool:
        """Whether matmuls that read the chain compute it."""
        may_fuse = self._is_of_matmuls and not self.has_slice(index)
        readers = self.readers(index)
        if len(readers) > 1:
            may_fuse &= not any(self._ends_call([index], value) for value in self._reads[index])
            may_fuse &= all(self._is_ended(reader) for reader in readers)
        return may_fuse and self._is_as_small(index, 2)

    def in_convolutions(self, index: int) -> bool:
        """Whether convolutions of the backward pass alone read the chain, each of which computes
        it; unless it is the epilogue of what it alone reads."""
        members, opcodes = self._members[index], self._graph.opcodes
        if not self._is_of_matmuls or any(opcodes[member] & _NOT_REPEATED for member in members):
            return False
        if self._graph.phase_of(index) is Phase.FORWARD:
            return False
        is_read = all("convolution" in opcodes[reader] for reader in self.readers(index))
        if not is_read or not self._is_as_small(index, 2):
            return False
        return not any(self._ends_call(members, value) for value in self._tensors(index))

    def _is_ended(self, reader: int) -> bool:
        """Whether an equation is a matmul of the backward pass only if a map or a reduction reads
        its result, or nothing does."""
        graph = self._graph
        if graph.phase_of(reader) is Phase.FORWARD or not is_of_matrices(graph, reader):
            return True
        found = self.readers(reader)
        return not found or any(is_map(graph, k) or "reduce" in graph.opcodes[k] for k in found)

    def is_softmax(self, index: int) -> bool:
        """Whether an equation is the exponential of a softmax in a wider type than its scores have,
        which are a matrix for each element of the batch, and more than converted to it."""
        graph, values = self._graph, self._graph.program.values
        if "exponential" not in graph.opcodes[index] or not self._is_of_matmuls:
            return False
        value = values[graph.program.equations[index].outputs[0]]
        scores = [values[v] for v in self._reads[index] if values[v].shape == value.shape]
        if len(scores) != 1 or scores[0].size_bytes >= value.size_bytes:
            return False
        if not any("reduce" in graph.opcodes[r] for r in graph.program.readers[value.index]):
            return False
        wide = {
            graph.program.equations[k].name for k in self._members[index] if self._is_wide(k, value)
        }
        return wide - _OF_SOFTMAX != set() and is_of_matrices(graph, scores[0].producer)

    def _is_wide(self, index: int, like: Value) -> bool:
        """Whether an equation's result has the shape and the type of a value."""
        (output,) = self._graph.program.equations[index].outputs
        found = self._graph.program.values[output]
        return (found.shape, found.size_bytes) == (like.shape, like.size_bytes)

    def compares(self, index: int) -> bool:
        """Whether an equation is a scatter that is computed as a map of the positions."""
        return self._is_of_matmuls and sets_one_per_row(self._graph.program.equations[index])

    def is_random(self, index: int) -> bool:
        """Whether an equation makes random bits of a key by arithmetic, as XLA:TPU does it."""
        is_random = self._graph.program.equations[index].name == "random_bits"
        is_arithmetic = "rng_bit_generator" not in self._graph.opcodes[index]
        return self._is_of_matmuls and is_random and is_arithmetic

    def is_apart(self, index: int) -> bool:
        """Whether a map is not fused with what reads it: a pad between elements, elements that are
        repeated between others, and the operand of a window."""
        if not self._is_of_matmuls:
            return False
        program, opcodes = self._graph.program, self._graph.opcodes
        (output,) = program.equations[index].outputs
        if interleaves(program.equations[index]) or repeats(program, index):
            return True
        return any(opcodes[reader] & WINDOWED for reader in program.readers[output])

    def _is_as_small(self, index: int, times: float = 1) -> bool:
        """Whether the chain's operands take at most so many times the bytes of its result, vectors
        apart."""
        values = self._graph.program.values
        size = values[self._graph.program.equations[index].outputs[0]].size_bytes
        read = self._tensors(index)
        return sum(values[v].size_bytes for v in read) <= times * size

    def _tensors(self, index: int) -> list[int]:
        """The operands of the chain without vectors."""
        values = self._graph.program.values
        size = values[self._graph.program.equations[index].outputs[0]].size_bytes
        return [v for v in self._reads[index] if values[v].size_bytes > _OF_VECTORS * size]

    def _is_free(self, index: int) -> bool:
        """Whether all that read the chain compute it, however long it is: it reads next to nothing,
        as that of random bits, which are made of a key."""
        return self._is_of_matmuls and self._is_as_small(index, 0)

    def too_long(self, index: int) -> bool:
        """Whether case 5 holds."""
        if self._graph.equations[index].is_constant or self._is_free(index):
            return False
        return len(self._members[index]) > MAX_CHAIN or len(self._reads[index]) > MAX_READS
