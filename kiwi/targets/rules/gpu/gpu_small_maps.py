"""XLA:GPU computes small values in the body of a loop again in each map that reads them.

An iteration of a recurrence runs many small kernels, whose launch takes longer than their work.
Fusion removes every launch that it can: additions and costly maps that several maps read are
computed in each of the maps.
"""

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import is_map
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_SMALL_BYTES = 2**18
"""The largest result that each reader computes again. Larger results are stored. Writing a result
of this size takes much less time than a launch."""

_LONGEST_CHAIN = 24
"""The most equations of a chain that each reader computes again. The results of longer chains are
stored."""


def is_small_in_loop(chains: Chains, index: int) -> bool:
    """Returns whether an equation of a loop's body has a small result and a short chain, and only
    maps of the same loop read it."""
    program = chains.graph.program
    equation = program.equations[index]
    if equation.loop is None or len(chains.members(index)) > _LONGEST_CHAIN:
        return False
    if program.values[equation.outputs[0]].size_bytes > _SMALL_BYTES:
        return False
    readers = chains.readers(index)
    return all(
        program.equations[reader].loop == equation.loop and is_map(chains.graph, reader)
        for reader in readers
    )


_WIDTH, _LENGTH = 256, 64


def _recurrence(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the final state of a recurrence. Two maps of an iteration read a sum; a matmul reads
    one of the maps."""

    def body(
        carry: tuple[jax.Array, jax.Array], x: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        h, c = carry
        total = jnp.cos(h) + x
        return (jnp.tanh(total) @ w, total * c), None

    zeros = jnp.zeros(x.shape[1:])
    return lax.scan(body, (zeros, zeros + 1.0), x)[0]


def _is_in_readers(module: InspectedModule) -> bool:
    """Returns whether the kernel that multiplies the sum also computes it."""
    return bool(module.with_opcodes("cosine", "add", "multiply"))


def _arguments(rows: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return array(_LENGTH, rows, _WIDTH), array(_WIDTH, _WIDTH)


WITNESS = Witness(
    says="The kernel that multiplies the sum computes it.",
    example=Example(_recurrence, _arguments(32)),
    shows=_is_in_readers,
    control=Example(_recurrence, _arguments(8192)),
)


RULE = Rule(
    name="gpu_small_maps",
    does="In the body of a loop, what takes at most 256 KiB is computed in each map that reads it.",
    component="PriorityFusion",
    observed="jax 0.10.2, H100",
    evidence=("tests/targets/test_gpu_iterations.py", "benchmarks/field"),
    witness=WITNESS,
    states=fusing(in_readers=(is_small_in_loop,), sums_in_readers=(is_small_in_loop,)),
    limits="Devices' parts are smaller than what is counted. Sums of sines and cosines that a "
    "reduction reads are stored however small they are.",
)
