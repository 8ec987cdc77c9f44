"""Which values XLA materialises, and which it fuses into their readers.

Every kernel that reads an absorbed equation computes it, so only materialised operands have
buffers. An equation is *materialised* if one of these holds:

1. It is not elementwise: matmul, convolution, reduction, gather, scatter, sort, a loop or another
   region, random bits, several results, side effects.
2. One of its values is a result of the function.
3. A library call (matmul, convolution) reads it, and it is more than a transpose or reshape of a
   materialised value. A barrier of `jax.checkpoint` in between changes nothing, since a barrier is
   no copy. Library calls read transposed operands, but no slices.
4. Several equations read it that one elementwise fusion does not join, and computing it twice costs
   more than reading it. That is so for a transcendental function, and for an addition (residual
   streams, gradient sums) unless it adds vectors to one materialised tensor (a normalisation).
5. The chain before it has more than `MAX_CHAIN` equations that compute something, or more than
   `MAX_READS` inputs.
6. It is a loop's border (`kiwi.hlo.loops`), the next iteration's carry, or an operand of a loop
   that it is not part of.
7. A manual computation (`shard_map`) reads it in the layout of its `in_specs`, or a kernel reads
   it.
8. A hint of the user pins its layout or its residency.

Compilers differ in what they fuse (`Fusion`). Some let all readers of a chain compute the chain.
Cases 3 and 4 then do not hold for the chain under a condition on its operands:

- They take at most the bytes of the result.
- If a matmul reads the result, they take at most twice the bytes of the result.
- If the result is a sum, they take at most half the bytes of the result (a product of vectors). On
  GPUs, a sum of strided or interleaved elements (an associative scan) has conditions of its own
  (`kiwi.targets.rules.gpu.resampled_sums`).

Compilers that fuse maps with matmuls, also in attention, are described in docs/reference/rules.md,
"XLA:TPU".

Equations that depend on no argument are absorbed unless case 1 or 2 holds. A matmul, convolution or
reduction whose only reader is a materialised map over the same elements is absorbed into the map,
which is its epilogue. On GPUs cuBLAS also adds a bias and one tensor if the matmul has other
readers.

Known imperfections: XLA's own choice depends on the backend's cost model. Epilogues of convolutions
and multi-output fusions are not distinguished.
"""

from collections.abc import Sequence
from math import prod

from kiwi.hlo.chains import MAX_CHAIN, MAX_READS, NO_FUSION, Chains, Fusion
from kiwi.hlo.equation_kinds import (
    LIBRARY_OPCODES,
    MATMULS,
    TAKES_EPILOGUE,
    WORTH_KEEPING,
    is_layout_change,
    is_map,
)
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.program import Program


def materialised(graph: HloGraph, fusion: Fusion = NO_FUSION) -> tuple[bool, ...]:
    """Returns, for each equation, whether its results have buffers.

    `fusion`: what the compiler computes inside other kernels.
    """
    program = graph.program
    results = program.result_values | program.next_values.keys() | program.pinned_values
    is_materialised: list[bool] = []
    chains = Chains(graph, is_materialised, fusion)
    for equation in graph.program.equations:
        chains.add(equation.index)
        decision = _decide(graph, equation.index, results, chains, fusion)
        is_materialised.append(decision or chains.too_long(equation.index))
    for index in reversed(range(len(is_materialised))):
        if is_materialised[index] and _has_one_reader(graph, index, is_materialised, results):
            is_materialised[index] = False
    for index, is_root in enumerate(is_materialised):
        if is_root and _has_epilogue(graph, index, is_materialised, results, fusion):
            is_materialised[index] = False
    return tuple(is_materialised)


def _has_one_reader(
    graph: HloGraph, index: int, is_materialised: list[bool], results: frozenset[int]
) -> bool:
    """Whether one kernel alone reads a costly elementwise result, so that the kernel can compute
    it. Several equations of this kernel may read the result."""
    if not is_map(graph, index) or not graph.opcodes[index] & WORTH_KEEPING:
        return False
    kernel, members = _only_kernel(graph, index, is_materialised)
    if graph.program.equations[index].outputs[0] in results or len(members) > MAX_CHAIN // 2:
        return False
    without = [is_root and k != index for k, is_root in enumerate(is_materialised)]
    return kernel is not None and len(chain(graph, without, kernel)[1]) <= MAX_READS


def _only_kernel(
    graph: HloGraph, index: int, is_materialised: list[bool]
) -> tuple[int | None, set[int]]:
    """Returns the map that alone reads an equation's result, and the equations in between.

    The map reads the result directly or through absorbed equations, and is in the same loop. It is
    None if there is no such map, or if there are several kernels. The equations in between are the
    absorbed ones, with the equation itself.
    """
    equations, readers = graph.program.equations, graph.program.readers
    kernels, members, pending = set(), set(), [index]
    while pending:
        member = pending.pop()
        members.add(member)
        reading = {reader for reader in readers[equations[member].outputs[0]]} - members
        kernels |= {reader for reader in reading if is_materialised[reader]}
        pending += [reader for reader in reading if not is_materialised[reader]]
    kernel = kernels.pop() if len(kernels) == 1 else None
    if kernel is None or equations[kernel].loop != equations[index].loop:
        return None, members
    return kernel if is_map(graph, kernel) else None, members


def _has_epilogue(
    graph: HloGraph,
    index: int,
    is_materialised: list[bool],
    results: frozenset[int],
    fusion: Fusion,
) -> bool:
    """Whether a map alone reads the result of a matmul, convolution or reduction, and is its
    epilogue."""
    equations, values = graph.program.equations, graph.program.values
    outputs = equations[index].outputs
    if not graph.opcodes[index] & TAKES_EPILOGUE or len(outputs) != 1 or outputs[0] in results:
        return False
    kernel, members = _only_kernel(graph, index, is_materialised)
    if kernel is None:
        return False
    if len(graph.program.readers[outputs[0]]) != 1 or len(members) > 1:
        absorbed, reads = chain(graph, is_materialised, kernel)
        ends_other = any(graph.opcodes[k] & TAKES_EPILOGUE for k in absorbed)
        is_call = graph.opcodes[index] & LIBRARY_OPCODES
        may_end = any(ends(graph, absorbed, reads) for ends in fusion.epilogues)
        if not may_end or not is_call or ends_other:
            return False
    if fusion.adds_to_scatters_in_place and _adds_to_scatter(graph, kernel, index, is_materialised):
        return False
    sizes = {prod(values[equations[k].outputs[0]].shape) for k in (*members, kernel)}
    return len(sizes) == 1


def _adds_to_scatter(graph: HloGraph, kernel: int, index: int, is_materialised: list[bool]) -> bool:
    """Whether a kernel reads the result of a scatter besides the result of `index`. The scatter
    then adds to that result in place."""
    producers = (
        graph.program.values[value].producer for value in chain(graph, is_materialised, kernel)[1]
    )
    return any(
        "scatter" in graph.opcodes[producer]
        for producer in producers
        if producer not in (None, index)
    )


def chain(
    graph: HloGraph, is_materialised: Sequence[bool], root: int
) -> tuple[list[int], list[int]]:
    """Returns the equations of the unit that ends in `root`, and the values that they read from
    outside, both in ascending order. The equations are the absorbed ones and `root`."""
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


def _decide(
    graph: HloGraph, index: int, results: frozenset[int], chains: Chains, fusion: Fusion
) -> bool:
    equation, info = graph.program.equations[index], graph.equations[index]
    opcodes = graph.opcodes[index]
    is_fused = is_map(graph, index) or chains.holds(fusion.maps, index)
    if not is_fused or any(output in results for output in equation.outputs):
        return True
    if info.is_constant:
        return False
    readers = chains.readers(index)
    if chains.holds(fusion.apart, index):
        return True
    if any(_enters_loop(graph.program, equation.loop, reader) for reader in readers):
        return True
    reading = [graph.program.equations[reader] for reader in readers]
    if any(
        reader.name == "shard_map" or reader.is_transfer or reader.is_kernel or reader.batches
        for reader in reading
    ):
        return True
    calls = {name for reader in readers for name in graph.opcodes[reader] & LIBRARY_OPCODES}
    if chains.holds(fusion.in_convolutions, index):
        return False
    if calls and not (calls <= MATMULS and chains.holds(fusion.in_matmuls, index)):
        is_read_through = is_layout_change(graph, index) or chains.only_passes(index)
        return not is_read_through or chains.has_slice(index)
    if len(readers) < 2:
        return False
    if chains.holds(fusion.stored, index):
        return True
    if "add" in opcodes and not (
        chains.shifts(index) or chains.holds(fusion.sums_in_readers, index)
    ):
        return True
    return bool(opcodes & WORTH_KEEPING) and not chains.holds(fusion.in_readers, index)


def _enters_loop(program: Program, loop: int | None, reader: int) -> bool:
    """Whether a reader runs in a loop inside of `loop`, the loop of the value."""
    inner = program.equations[reader].loop
    return len(program.loops_around(inner)) > len(program.loops_around(loop))
