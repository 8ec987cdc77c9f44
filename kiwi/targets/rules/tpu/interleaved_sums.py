"""XLA:TPU computes a sum of interleaved tensors in each kernel that reads it.

The pads that interleave are kernels of their own (`unfused_strides`). Their results stay in memory
for later readers of the sum, such as the backward pass of `jax.lax.associative_scan`, and the sum
does not.
"""

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import interleaves
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule


def adds_interleaved(chains: Chains, index: int) -> bool:
    """Whether an equation adds nothing but tensors with elements put between others."""
    program = chains.graph.program
    producers = [program.values[v].producer for v in program.equations[index].reads]
    return all(k is not None and interleaves(program.equations[k]) for k in producers)


_BATCH, _LENGTH, _WIDTH, _STATES = 2, 64, 512, 32


def _interleaved(x: jax.Array) -> jax.Array:
    even = lax.pad(jnp.sin(x), 0.0, ((0, 0, 0), (0, 1, 1), (0, 0, 0), (0, 0, 0)))
    odd = lax.pad(jnp.tan(x), 0.0, ((0, 0, 0), (1, 0, 1), (0, 0, 0), (0, 0, 0)))
    return even + odd


def _read_by_width(x: jax.Array, p: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = _interleaved(x)
    outputs = jnp.einsum("btdn,dn->btd", y, p)
    return outputs, jnp.einsum("btdn,btd->dn", y, jnp.sin(outputs))


def _read_as_rows(x: jax.Array, p: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = _interleaved(x)
    outputs = y @ p[0]
    return outputs, (y * jnp.sin(outputs)[..., None]).sum((0, 1, 2))


def _adds_in_each_reader(module: InspectedModule) -> bool:
    return len(module.with_opcodes("add", "reduce")) == 2


_ARGUMENTS = array(_BATCH, _LENGTH, _WIDTH, _STATES), array(_WIDTH, _STATES)

WITNESS = Witness(
    says="Both kernels that read the sum of the halves add them.",
    example=Example(_read_by_width, _ARGUMENTS),
    shows=_adds_in_each_reader,
    # Readers that go through the sum in one order share it: the first one writes it.
    control=Example(_read_as_rows, _ARGUMENTS),
)


RULE = Rule(
    name="interleaved_sums",
    does="All readers of a sum of interleaved tensors add them for themselves.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/targets/test_resampled_sums.py", "benchmarks/field"),
    witness=WITNESS,
    limits="Where all readers go through the sum in one order, the first one writes it.",
    states=fusing(sums_in_readers=(adds_interleaved,)),
)
