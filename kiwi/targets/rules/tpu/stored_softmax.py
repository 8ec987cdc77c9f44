"""XLA:TPU stores the exponential of a softmax that is computed in a wider dtype than its scores.

The scores are the result of a batched matmul in bfloat16. If a mask or a scale is applied to them
in float32, beyond the conversion, several kernels read the exponential, and it has a buffer.
"""

import jax
import jax.numpy as jnp

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import is_of_matrices
from kiwi.hlo.program import Value
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_OF_SOFTMAX = frozenset({"convert_element_type", "sub", "exp", "broadcast_in_dim", "stop_gradient"})
"""The primitives that `jax.nn.softmax` applies to scores of a narrower dtype, up to the
exponential."""


def is_stored_softmax(chains: Chains, index: int) -> bool:
    """Returns whether an equation is the exponential of a softmax that this rule stores."""
    graph, values = chains.graph, chains.graph.program.values
    if "exponential" not in graph.opcodes[index]:
        return False
    value = values[graph.program.equations[index].outputs[0]]
    scores = [values[read] for read in chains.reads(index) if values[read].shape == value.shape]
    if len(scores) != 1 or scores[0].size_bytes >= value.size_bytes:
        return False
    if not any("reduce" in graph.opcodes[reader] for reader in graph.program.readers[value.index]):
        return False
    members = (member for member in chains.members(index) if _is_as_wide(chains, member, value))
    wide_names = {graph.program.equations[member].name for member in members}
    return wide_names - _OF_SOFTMAX != set() and is_of_matrices(graph, scores[0].producer)


def _is_as_wide(chains: Chains, index: int, like: Value) -> bool:
    """Returns whether an equation's result has the shape and the bytes of `like`."""
    program = chains.graph.program
    (output,) = program.equations[index].outputs
    result = program.values[output]
    return (result.shape, result.size_bytes) == (like.shape, like.size_bytes)


_HEADS = array(4, 512, 4, 64, dtype="bfloat16")
_SCORES = 4 * 4 * 512 * 512


def _attention(q: jax.Array, k: jax.Array, v: jax.Array, *, is_causal: bool) -> jax.Array:
    scores = jnp.einsum("bqhk,bshk->bhqs", q, k).astype(jnp.float32)
    rows = jnp.arange(scores.shape[-1])
    scores = jnp.where(rows[:, None] >= rows, scores, -1e30) if is_causal else scores
    return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(scores).astype(q.dtype), v)


def _stores_exponential(module: InspectedModule) -> bool:
    return any(kernel.writes(_SCORES, "f32") for kernel in module.with_opcodes("exponential"))


WITNESS = Witness(
    says="A kernel that computes exponentials writes them in float32.",
    example=Example(lambda q, k, v: _attention(q, k, v, is_causal=True), (_HEADS,) * 3),
    shows=_stores_exponential,
    control=Example(lambda q, k, v: _attention(q, k, v, is_causal=False), (_HEADS,) * 3),
)


RULE = Rule(
    name="stored_softmax",
    does="The exponential of a softmax in float32 of masked or scaled scores in bfloat16 is "
    "stored.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/xla/tpu/test_unfused_operands.py", "docs/evidence/tpu.md"),
    witness=WITNESS,
    states=fusing(stored=(is_stored_softmax,)),
    limits="A plain decoder in bfloat16 holds less than this rule says.",
)
