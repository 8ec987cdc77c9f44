"""XLA:TPU computes the maps in front of a matmul, and behind it, in the matmul's kernel.

- Each matmul that reads a map computes it, if the map's operands take at most twice the bytes of
  its result and the map does not slice. Two more conditions hold for a map with several readers. It
  must not be the epilogue of another matmul. And no matmul of the backward pass that reads it may
  itself have one matmul as its only reader.
- A transpose or reshape is no kernel: its readers read the original value.
- A chain that reads next to nothing, such as a chain that makes random bits, is computed by all its
  readers.
- A scatter adds to the result of a matmul in place. The result of the matmul then has a buffer.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import is_map, is_of_matrices
from kiwi.hlo.graph import HloGraph, Phase
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_MOST_READ = 2
"""The most bytes of a map's operands, as a multiple of the bytes of its result. The result of a map
with larger operands is stored."""


def is_in_matmuls(chains: Chains, index: int) -> bool:
    """Returns whether the matmuls that read an equation's result compute it."""
    if chains.has_slice(index):
        return False
    readers = chains.readers(index)
    if len(readers) > 1:
        if any(chains.ends_call([index], value) for value in chains.reads(index)):
            return False
        if any(_is_for_one_matmul(chains, reader) for reader in readers):
            return False
    return chains.is_as_small(index, _MOST_READ)


def _is_for_one_matmul(chains: Chains, reader: int) -> bool:
    """Returns whether an equation is a matmul of the backward pass whose only reader is another
    matmul."""
    graph = chains.graph
    if graph.phase_of(reader) is Phase.FORWARD or not is_of_matrices(graph, reader):
        return False
    readers = chains.readers(reader)
    return len(readers) == 1 and not (
        is_map(graph, readers[0]) or "reduce" in graph.opcodes[readers[0]]
    )


def ends_any(graph: HloGraph, absorbed: Sequence[int], reads: Sequence[int]) -> bool:
    """Returns True: any chain behind a matmul is computed in the matmul's kernel, whatever else the
    chain reads."""
    return True


_WIDTH = 1024


def _is_one_kernel(module: InspectedModule) -> bool:
    (kernel, *others) = module.kernels
    return not others and kernel.computes("convolution", "sine", "tanh")


_MATRICES = (array(_WIDTH, _WIDTH),) * 2

WITNESS = Witness(
    says="The sine in front of the matmul, the matmul and the tanh behind it are one kernel.",
    example=Example(lambda x, w: jnp.tanh(jnp.sin(x) @ w), _MATRICES),
    shows=_is_one_kernel,
    control=Example(lambda x, w: jnp.tanh(lax.sort(jnp.sin(x)) @ w), _MATRICES),
)


RULE = Rule(
    name="maps_in_matmuls",
    does="A matmul computes the maps that it reads, if their operands take at most twice the bytes "
    "of the result, and the maps of its result.",
    component="fusion of XLA:TPU (output fusion)",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/hlo/test_fusion.py", "tests/xla/tpu/test_unfused_operands.py"),
    witness=WITNESS,
    states=fusing(
        in_matmuls=(is_in_matmuls,),
        epilogues=(ends_any,),
        repeats_short_chains=True,
        reads_through_layouts=True,
        adds_to_scatters_in_place=True,
    ),
)
