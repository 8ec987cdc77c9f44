"""XLA:GPU computes a sum of strided slices or of interleaved tensors in the kernels that read it.

The levels of `jax.lax.associative_scan` are such sums. On the way down each level adds the odd
elements of the one before to its scaled even elements; on the way up two halves are padded with
zeros between the elements and added. PriorityFusion fuses a producer if its readers then move fewer
bytes, and if no instruction is emitted more than 15 times in one kernel
(`FusionNodeIndexingEvaluation`): slices of even and of odd elements each emit what they slice.
"""

import functools
from collections.abc import Collection
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import is_map, is_strided
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.program import Equation
from kiwi.kernels.emitted_instructions import EmittedInstructions
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_MOST_EVALUATIONS = 15
"""How often a kernel may emit an instruction (`kAllowedCodeDuplication`)."""

_MOST_EVALUATIONS_OF_WIDE = 3
"""How often a kernel computes a sum of operands that are as large as the sum. Computing it more
often takes longer than storing and reading it."""


def computed_by_readers(chains: Chains, index: int) -> bool:
    """Whether the readers of an equation compute its sum of strided or interleaved elements."""
    return index in _levels(chains.graph).fused


def emitted_twice(chains: Chains, index: int) -> bool:
    """Whether an equation joins half of a level that kernels would emit more than once."""
    return index in _levels(chains.graph).stored


@dataclass(frozen=True)
class _Levels:
    """What becomes of the levels of scans.

    - `fused`: sums of strided or interleaved elements that no kernel stores.
    - `stored`: concatenations that a kernel stores.
    """

    fused: frozenset[int] = frozenset()
    stored: frozenset[int] = frozenset()


@functools.lru_cache(maxsize=2)
def _levels(graph: HloGraph) -> _Levels:
    """Returns the levels of a graph's scans.

    Larger sums are fused first, as by PriorityFusion, since they save more.
    """
    equations, values = graph.program.equations, graph.program.values
    sums = {equation.index for equation in equations if _has_readers_and_adds(graph, equation)}
    candidates = [index for index in sums if _is_resampled(graph, index, sums)]
    if not candidates:
        return _Levels()
    sizes = {index: values[equations[index].outputs[0]].size_bytes for index in candidates}
    emitted = EmittedInstructions(graph, sums)
    fused = set()
    for index in sorted(candidates, key=lambda k: (-sizes[k], k)):
        emitted.fuse(index, is_fused=True)
        if all(_may_be_emitted(emitted, k, sums) for k in emitted.kernels_reading(index)):
            fused.add(index)
        else:
            emitted.fuse(index, is_fused=False)
    joined = [e.index for e in equations if "concatenate" in graph.opcodes[e.index]]
    halves = (index for index in joined if _is_resampled(graph, index, sums))
    stored = (index for index in halves if _is_emitted_twice(emitted, index))
    return _Levels(frozenset(fused), frozenset(stored))


def _is_emitted_twice(emitted: EmittedInstructions, index: int) -> bool:
    """Returns whether one kernel, or several together, emit a concatenation more than once."""
    kernels = (emitted.evaluations(kernel) for kernel in emitted.kernels_reading(index))
    return sum(evaluations.get(index, 0) for evaluations in kernels) > 1


def _has_readers_and_adds(graph: HloGraph, equation: Equation) -> bool:
    """Returns whether several equations read the result of an addition."""
    if "add" not in graph.opcodes[equation.index] or not is_map(graph, equation.index):
        return False
    return len(graph.program.readers[equation.outputs[0]]) > 1


def _is_resampled(graph: HloGraph, index: int, sums: Collection[int]) -> bool:
    """Returns whether an equation computes with strided or interleaved elements of tensors that are
    stored, or of other sums with several readers."""
    program = graph.program
    seen, pending = {index}, [index]
    while pending:
        for operand in program.equations[pending.pop()].reads:
            producer = program.values[operand].producer
            if producer is None or producer in seen or producer in sums:
                continue
            if is_strided(program.equations[producer]):
                return True
            if is_map(graph, producer):
                seen.add(producer)
                pending.append(producer)
    return False


def _may_be_emitted(emitted: EmittedInstructions, kernel: int, sums: Collection[int]) -> bool:
    """Returns whether XLA emits a kernel with all that is fused into it."""
    evaluations = emitted.evaluations(kernel)
    often = (k for k, count in evaluations.items() if count > _MOST_EVALUATIONS_OF_WIDE)
    return max(evaluations.values()) <= _MOST_EVALUATIONS and not any(
        index in sums and emitted.is_from_tensors(index) for index in often
    )


_ROWS, _WIDTH = 1024, 1024


def _interleaved(x: jax.Array) -> jax.Array:
    even = lax.pad(jnp.sin(x), 0.0, ((0, 1, 1), (0, 0, 0)))
    odd = lax.pad(jnp.tan(x), 0.0, ((1, 0, 1), (0, 0, 0)))
    return even + odd


def _read_twice(y: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    return y.sum(0), (y * (y.sum(0) @ w)).sum(1)


def _adds_in_each_reader(module: InspectedModule) -> bool:
    adding = [k for k in module.with_opcodes("pad", "add") if k.computes("reduce")]
    return len(adding) == 2 and not any(k.writes(2 * _ROWS * _WIDTH) for k in module.kernels)


WITNESS = Witness(
    says="Two kernels pad and add the halves, and none writes the sum.",
    example=Example(
        lambda x, w: _read_twice(_interleaved(x), w), (array(_ROWS, _WIDTH), array(_WIDTH, _WIDTH))
    ),
    shows=_adds_in_each_reader,
    # A sum of two other tensors is written.
    control=Example(
        lambda x, y, w: _read_twice(jnp.sin(x) + jnp.tan(y), w),
        (*(array(2 * _ROWS, _WIDTH),) * 2, array(_WIDTH, _WIDTH)),
    ),
)


RULE = Rule(
    name="resampled_sums",
    does="All readers of a sum of strided slices or interleaved tensors compute it for themselves, "
    "as long as a kernel emits no instruction more than 15 times and no concatenation twice.",
    component="PriorityFusion",
    observed="jax 0.10.2, H100",
    evidence=("tests/targets/test_resampled_sums.py", "benchmarks/field"),
    witness=WITNESS,
    states=fusing(sums_in_readers=(computed_by_readers,), apart=(emitted_twice,)),
)
