"""On TPUs each reader computes a sum of two stored tensors that have other readers, too.

Reading the two tensors again costs no more than writing the sum and reading it. These sums are
stored all the same:

- a sum that alone reads one of the tensors: it takes the tensor's place, mostly as the epilogue of
  the matmul or convolution that computes the tensor;
- a sum that a convolution of the forward pass reads, directly or through maps, because such a
  convolution computes no map of two tensors;
- a sum of gradients that no convolution reads.
"""

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.graph import Phase
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_MOST_READ = 2
"""The most bytes of a sum's operands, as a multiple of the bytes of the sum. A sum with larger
operands is stored."""


def sums_stored_tensors(chains: Chains, index: int) -> bool:
    """Returns whether all readers of a sum compute it from at most two stored tensors."""
    if not chains.is_as_small(index, _MOST_READ):
        return False
    members = chains.members(index)
    if any(chains.read_alone(members, tensor) for tensor in chains.tensors(index)):
        return False
    is_forward = chains.graph.phase_of(index) is Phase.FORWARD
    return _is_convolved(chains, index, is_forward) is not is_forward


def _is_convolved(chains: Chains, index: int, is_forward: bool) -> bool:
    """Returns whether a convolution of the forward pass, or of the backward pass, reads an
    equation's result, directly or through maps."""
    graph = chains.graph
    seen, pending = {index}, [index]
    while pending:
        for reader in chains.readers(pending.pop()):
            if (graph.phase_of(reader) is Phase.FORWARD) is not is_forward:
                continue
            if "convolution" in graph.opcodes[reader]:
                return True
            if reader not in seen and is_map(graph, reader):
                seen.add(reader)
                pending.append(reader)
    return False


_WIDTH = 1024


def _rectified(h: jax.Array) -> jax.Array:
    """Returns the sums of the sorted, rectified values of `h`, where `h` is positive."""
    return jnp.where(h > 0, lax.sort(jnp.maximum(h, 0.0)), 0.0).sum(0)


def _adds_in_each_reader(module: InspectedModule) -> bool:
    """Returns whether one kernel adds and rectifies, and another one adds and selects."""
    return bool(module.with_opcodes("add", "maximum") and module.with_opcodes("add", "select"))


_MATRICES = (array(_WIDTH, _WIDTH),) * 2

WITNESS = Witness(
    says="Two kernels add the matrices: the one that rectifies the sum, and the one that"
    " compares it.",
    example=Example(lambda x, y: _rectified(x + y), _MATRICES),
    shows=_adds_in_each_reader,
    control=Example(lambda x, y: _rectified(lax.sort(x + y)), _MATRICES),
)


RULE = Rule(
    name="sums_in_readers",
    does="All readers of a sum of two stored tensors that others read as well compute it for "
    "themselves, in the forward pass if no convolution reads it, in the backward pass if one does.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/xla/tpu/test_images.py",),
    witness=WITNESS,
    states=fusing(sums_in_readers=(sums_stored_tensors,)),
)
