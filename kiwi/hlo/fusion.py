"""Which values XLA materialises, and which it fuses into their readers.

Every kernel that reads an absorbed equation computes it, so that only materialised operands have
buffers. An equation is *materialised* if one of these holds:

1. it is not elementwise: matmul, convolution, reduction, gather, scatter, sort, a loop or another
   region, random bits, several results, side effects;
2. one of its values is a result of the function;
3. a library call (matmul, convolution) reads it, and it is more than a transpose or reshape of a
   materialised value, also behind a barrier of `jax.checkpoint`: library calls read transposed
   operands but no slices, and a barrier is no copy;
4. several equations read it that one elementwise fusion does not join, and computing it twice costs
   more than reading it: an addition (residual streams, gradient sums) unless it adds vectors to one
   materialised tensor (a normalisation), or a transcendental function;
5. the chain in front of it has grown to `MAX_CHAIN` equations or `MAX_READS` inputs;
6. it is a loop's border (`kiwi.hlo.loops`), the next iteration's carry, or an operand of a loop
   that it is not part of;
7. a manual computation (`shard_map`) reads it in the layout of its `in_specs`, or a kernel does;
8. a hint of the user pins its layout or its residency.

Compilers differ in what they fuse (`FusedMaps`): cases 3 and 4 do not hold for a chain that all of
its readers compute, if its operands take no more bytes than its result, in front of matmuls no more
than twice as many, and for an addition at most half as many (a product of vectors). A compiler that
fuses maps with matmuls also computes a scatter of one element into each row as a map, adds one to a
matmul's result in place, computes what several matmuls read as the epilogue of another, and fuses
neither a pad between elements nor the operand of a window: what two units read of these is computed
once, and held (jax 0.10.2 and libtpu 0.0.42: a state-space model and a convnet of
`benchmarks/fidelity`).

Equations that depend on no argument are absorbed unless case 1 or 2 holds. A matmul,
convolution or reduction whose only reader is a materialised map over the same elements is
absorbed into it: its epilogue.

Known imperfections: XLA's own choice depends on the backend's cost model; convolutions'
epilogues and multi-output fusions are not told apart.
"""

import enum
from collections.abc import Sequence
from math import prod

from kiwi.hlo.graph import HloGraph
from kiwi.hlo.program import Equation, Program

MAX_CHAIN = 48
MAX_READS = 10

_OF_VECTORS = 0.01
"""Up to which part of a tensor's bytes what is added to it counts as vectors."""

_OF_PRODUCTS = 0.5
"""Up to which part of a tensor's bytes operands are much smaller."""

_MATMULS = frozenset({"dot_general", "dot"})
LIBRARY_OPCODES = _MATMULS | {"convolution"}

_NOT_ELEMENTWISE = LIBRARY_OPCODES | {
    "all_gather",
    "all_reduce",
    "all_to_all",
    "case",
    "cholesky",
    "chlo.top_k",
    "collective_permute",
    "custom_call",
    "dynamic_update_slice",
    "fft",
    "gather",
    "if",
    "infeed",
    "reduce",
    "reduce_scatter",
    "reduce_window",
    "rng",
    "rng_bit_generator",
    "scatter",
    "select_and_scatter",
    "sort",
    "triangular_solve",
    "while",
}

_WINDOWED = frozenset({"reduce_window", "select_and_scatter"})

_TAKES_EPILOGUE = LIBRARY_OPCODES | {"reduce"}

_WORTH_KEEPING = frozenset(
    {
        "atan2",
        "cbrt",
        "chlo.erf",
        "chlo.erf_inv",
        "cosine",
        "exponential",
        "exponential_minus_one",
        "log",
        "log_plus_one",
        "logistic",
        "power",
        "rsqrt",
        "sine",
        "sqrt",
        "tan",
        "tanh",
    }
)

BARRIER = "optimization_barrier"

_LAYOUT = frozenset(
    {"transpose", "reshape", "slice", "broadcast_in_dim", "bitcast_convert", "constant"}
)


class FusedMaps(enum.Enum):
    """Which costly maps a compiler fuses.

    - `OF_ONE_READER`: with a single reader.
    - `OF_MAPS`: also with several maps and reductions, each of which computes them again.
    - `OF_MATMULS`: also with matmuls that read them, and with library calls that they alone read.
    """

    OF_ONE_READER = enum.auto()
    OF_MAPS = enum.auto()
    OF_MATMULS = enum.auto()


def materialised(graph: HloGraph, fused: FusedMaps = FusedMaps.OF_ONE_READER) -> tuple[bool, ...]:
    """For each equation, whether its results have buffers."""
    program = graph.program
    results = program.result_values | program.next_values.keys() | program.pinned_values
    found: list[bool] = []
    chains = _Chains(graph, found, fused)
    for equation in graph.program.equations:
        chains.add(equation.index)
        decision = _decide(graph, equation.index, results, chains)
        found.append(decision or chains.too_long(equation.index))
    for index in reversed(range(len(found))):
        if found[index] and _has_one_reader(graph, index, found, results):
            found[index] = False
    for index, is_root in enumerate(found):
        if is_root and _has_epilogue(graph, index, found, results, fused):
            found[index] = False
    return tuple(found)


def _has_one_reader(
    graph: HloGraph, index: int, is_materialised: list[bool], results: frozenset[int]
) -> bool:
    """Whether a single kernel reads a costly elementwise result that several equations read."""
    if not is_map(graph, index) or not graph.opcodes[index] & _WORTH_KEEPING:
        return False
    kernel, members = _only_kernel(graph, index, is_materialised)
    if graph.program.equations[index].outputs[0] in results or len(members) > MAX_CHAIN // 2:
        return False
    without = [is_root and k != index for k, is_root in enumerate(is_materialised)]
    return kernel is not None and len(chain(graph, without, kernel)[1]) <= MAX_READS


def _only_kernel(
    graph: HloGraph, index: int, is_materialised: list[bool]
) -> tuple[int | None, set[int]]:
    """The map that alone reads an equation's result, through absorbed equations or not, if there is
    one in the same loop; and these equations."""
    equations, readers = graph.program.equations, graph.program.readers
    kernels, members, pending = set(), set(), [index]
    while pending:
        member = pending.pop()
        members.add(member)
        reading = {r for r in readers[equations[member].outputs[0]]} - members
        kernels |= {r for r in reading if is_materialised[r]}
        pending += [r for r in reading if not is_materialised[r]]
    kernel = kernels.pop() if len(kernels) == 1 else None
    if kernel is None or equations[kernel].loop != equations[index].loop:
        return None, members
    return kernel if is_map(graph, kernel) else None, members


def _has_epilogue(
    graph: HloGraph,
    index: int,
    is_materialised: list[bool],
    results: frozenset[int],
    fused: FusedMaps,
) -> bool:
    """Whether one kernel alone reads the result of a matmul, convolution or reduction, and ends
    it."""
    equations, values = graph.program.equations, graph.program.values
    outputs = equations[index].outputs
    if not graph.opcodes[index] & _TAKES_EPILOGUE or len(outputs) != 1 or outputs[0] in results:
        return False
    kernel, members = _only_kernel(graph, index, is_materialised)
    if kernel is None:
        return False
    if len(graph.program.readers[outputs[0]]) != 1 or len(members) > 1:
        absorbed, _ = chain(graph, is_materialised, kernel)
        ends_other = any(graph.opcodes[k] & _TAKES_EPILOGUE for k in absorbed)
        is_call = graph.opcodes[index] & LIBRARY_OPCODES
        if fused is not FusedMaps.OF_MATMULS or not is_call or ends_other:
            return False
    if _adds_to_scatter(graph, kernel, index, is_materialised, fused):
        return False
    sizes = {prod(values[equations[k].outputs[0]].shape) for k in (*members, kernel)}
    return len(sizes) == 1


def _adds_to_scatter(
    graph: HloGraph, kernel: int, index: int, is_materialised: list[bool], fused: FusedMaps
) -> bool:
    """Whether a kernel also reads a scatter, which then adds to the result of `index` in place."""
    if fused is not FusedMaps.OF_MATMULS:
        return False
    producers = (graph.program.values[v].producer for v in chain(graph, is_materialised, kernel)[1])
    return any("scatter" in graph.opcodes[p] for p in producers if p not in (None, index))


def chain(
    graph: HloGraph, is_materialised: Sequence[bool], root: int
) -> tuple[list[int], list[int]]:
    """The equations that `root` absorbs, in order, and the values read from outside."""
    program = graph.program
    members, reads, pending = {root}, {}, [root]
    while pending:
        for value in program.equations[pending.pop()].reads:
            producer = program.values[value].producer
            if producer is None or is_materialised[producer]:
                reads[value] = None
            elif producer not in members:
                members.add(producer)
                pending.append(producer)
    return sorted(members), sorted(reads)


def is_map(graph: HloGraph, index: int) -> bool:
    """Whether an equation is elementwise and has one result."""
    equation = graph.program.equations[index]
    if graph.equations[index].is_region or equation.has_effects or len(equation.outputs) != 1:
        return False
    if equation.is_border or equation.is_transfer:
        return False
    return not graph.opcodes[index] & _NOT_ELEMENTWISE


def _sets_one_per_row(graph: HloGraph, index: int) -> bool:
    """Whether an equation is a scatter of a single element into each row, as the gradient of
    `take_along_axis`: each position is compared with the row's index."""
    equation = graph.program.equations[index]
    if equation.name != "scatter-add":
        return False
    numbers = equation.jaxpr_eqn.params["dimension_numbers"]
    rank = len(equation.jaxpr_eqn.outvars[0].aval.shape)
    return not numbers.update_window_dims and len(numbers.operand_batching_dims) == rank - 1


def is_opaque(graph: HloGraph, equation: int) -> bool:
    """Whether an equation calls something that HLO only knows by name, without a rule."""
    is_kernel = graph.program.equations[equation].is_kernel
    return "custom_call" in graph.opcodes[equation] and not is_kernel


def is_layout_change(graph: HloGraph, equation: int) -> bool:
    """Whether an equation only transposes, reshapes or broadcasts its operand."""
    return graph.opcodes[equation] <= _LAYOUT


def _decide(graph: HloGraph, index: int, results: frozenset[int], chains: "_Chains") -> bool:
    equation, info = graph.program.equations[index], graph.equations[index]
    found = graph.opcodes[index]
    is_fused = is_map(graph, index) or chains.compares(index)
    if not is_fused or any(o in results for o in equation.outputs):
        return True
    if info.is_constant:
        return False
    readers = graph.program.readers[equation.outputs[0]]
    if chains.is_apart(index):
        return True
    if any(_enters_loop(graph.program, equation.loop, r) for r in readers):
        return True
    reading = [graph.program.equations[r] for r in readers]
    if any(r.name == "shard_map" or r.is_transfer or r.is_kernel for r in reading):
        return True
    calls = {name for r in readers for name in graph.opcodes[r] & LIBRARY_OPCODES}
    if calls and not (calls <= _MATMULS and chains.in_matmuls(index)):
        is_read_through = is_layout_change(graph, index) or chains.only_passes(index)
        return not is_read_through or chains.has_slice(index)
    if len(readers) < 2:
        return False
    if "add" in found and not (chains.shifts(index) or chains.expands(index)):
        return True
    return bool(found & _WORTH_KEEPING) and not chains.in_readers(index)


def interleaves(equation: Equation) -> bool:
    """Whether an equation pads between elements."""
    if equation.name != "pad":
        return False
    return any(interior for _, _, interior in equation.jaxpr_eqn.params["padding_config"])


def _enters_loop(program: Program, loop: int | None, reader: int) -> bool:
    """Whether a reader runs in a loop that the value is not part of."""
    inner = program.equations[reader].loop
    return len(program.loops_around(inner)) > len(program.loops_around(loop))


class _Chains:
    """The equations and inputs of the chain in front of each absorbed value."""

    def __init__(self, graph: HloGraph, is_materialised: list[bool], fused: FusedMaps) -> None:
        self._graph, self._fused = graph, fused
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
                members |= self._members[producer]
                reads |= self._reads[producer]
        self._members[index], self._reads[index] = frozenset(members), frozenset(reads)

    def has_slice(self, index: int) -> bool:
        """Whether the chain takes a part of what it reads."""
        return any("slice" in self._graph.opcodes[member] for member in self._members[index])

    def only_passes(self, index: int) -> bool:
        """Whether the chain passes a tensor through barriers, and at most rearranges it."""
        found = (self._graph.opcodes[member] for member in self._members[index])
        return all(names <= _LAYOUT | {BARRIER} for names in found)

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
        return not self._ends_call(index, tensors[0])

    def _ends_call(self, index: int, value: int) -> bool:
        """Whether an equation alone reads a matmul's, convolution's or reduction's result."""
        producer = self._graph.program.values[value].producer
        if producer is None or self._graph.program.readers[value] != (index,):
            return False
        return bool(self._graph.opcodes[producer] & _TAKES_EPILOGUE)

    def expands(self, index: int) -> bool:
        """Whether the chain makes a tensor of others that are much smaller, which all readers do
        for themselves."""
        return self._fused is FusedMaps.OF_MATMULS and self._is_as_small(index, _OF_PRODUCTS)

    def in_readers(self, index: int) -> bool:
        """Whether maps and reductions that read the chain compute it."""
        return self._fused is not FusedMaps.OF_ONE_READER and self._is_as_small(index)

    def in_matmuls(self, index: int) -> bool:
        """Whether matmuls that read the chain compute it."""
        may_fuse = self._fused is FusedMaps.OF_MATMULS and not self.has_slice(index)
        (output,) = self._graph.program.equations[index].outputs
        if len(self._graph.program.readers[output]) > 1:
            may_fuse &= not any(self._ends_call(index, value) for value in self._reads[index])
        return may_fuse and self._is_as_small(index, 2)

    def compares(self, index: int) -> bool:
        """Whether an equation is a scatter that is computed as a map of the positions."""
        return self._fused is FusedMaps.OF_MATMULS and _sets_one_per_row(self._graph, index)

    def is_apart(self, index: int) -> bool:
        """Whether a map is not fused with what reads it: a pad between elements, and the operand of
        a window."""
        if self._fused is not FusedMaps.OF_MATMULS:
            return False
        program, opcodes = self._graph.program, self._graph.opcodes
        (output,) = program.equations[index].outputs
        return interleaves(program.equations[index]) or any(
            opcodes[reader] & _WINDOWED for reader in program.readers[output]
        )

    def _is_as_small(self, index: int, times: float = 1) -> bool:
        """Whether the chain's operands take at most so many times the bytes of its result, vectors
        apart."""
        values = self._graph.program.values
        size = values[self._graph.program.equations[index].outputs[0]].size_bytes
        return sum(values[v].size_bytes for v in self._reads[index]) <= (times + _OF_VECTORS) * size

    def too_long(self, index: int) -> bool:
        """Whether case 5 holds."""
        if self._graph.equations[index].is_constant:
            return False
        return len(self._members[index]) > MAX_CHAIN or len(self._reads[index]) > MAX_READS
