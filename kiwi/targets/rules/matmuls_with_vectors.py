"""A matmul with a vector, possibly for every element of a batch, is a multiplication and a sum.

So the kernel of the sum computes the elementwise operators before it, and no library is called.
`jnp.einsum("btdn,dn->btd", states, p)` is one: the output of a state-space model.
"""

import jax
import jax.numpy as jnp

from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_BATCH, _LENGTH, _WIDTH, _STATES, _COLUMNS = 4, 64, 256, 32, 16


def _with_vectors(x: jax.Array, p: jax.Array) -> jax.Array:
    return jnp.einsum("btdn,dn->btd", jnp.sin(x), p)


def _with_matrices(x: jax.Array, p: jax.Array) -> jax.Array:
    return jnp.einsum("btdn,dnm->btdm", jnp.sin(x), p)


def _multiplies_and_sums(module: InspectedModule) -> bool:
    summing = [kernel for kernel in module.kernels if kernel.computes("multiply", "reduce", "sine")]
    return len(summing) == 1


_STATE = array(_BATCH, _LENGTH, _WIDTH, _STATES)

WITNESS = Witness(
    says="One kernel computes the sine, multiplies and sums.",
    example=Example(_with_vectors, (_STATE, array(_WIDTH, _STATES))),
    shows=_multiplies_and_sums,
    control=Example(_with_matrices, (_STATE, array(_WIDTH, _STATES, _COLUMNS))),
)


RULE = Rule(
    name="matmuls_with_vectors",
    does="A matmul with a vector, possibly for every element of a batch, is multiplied and summed "
    "in one kernel with what is before it.",
    component="AlgebraicSimplifier::HandleDotStrengthReduction",
    observed="jax 0.10.2, H100 and v5e",
    evidence=("tests/hlo/test_opcodes.py", "benchmarks/field"),
    witness=WITNESS,
    states=fusing(vector_products=True),
)
