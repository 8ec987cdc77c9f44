"""XLA:GPU computes small values in an iteration of a loop again in each kernel that reads them.

An iteration of a recurrence runs dozens of kernels of a few kilobytes each, whose launch takes
longer than their work. Fusion leaves out every launch that it can: sums and costly maps that
several maps read are computed in all of them.
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
"""A tensor that takes a tenth of a launch to write, on an H100."""

_LONGEST_CHAIN = 24


def is_small_in_loop(chains: Chains, index: int) -> bool:
    """Whether an equation of a loop's body yields so little, and no other loop reads it."""
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
    """Two maps of an iteration read a sum, one of them for a matmul."""

    def body(
        carry: tuple[jax.Array, jax.Array], x: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        h, c = carry
        total = jnp.cos(h) + x
        return (jnp.tanh(total) @ w, total * c), None

    zeros = jnp.zeros(x.shape[1:])
    return lax.scan(body, (zeros, zeros + 1.0), x)[0]


def _is_in_readers(module: InspectedModule) -> bool:
    """Whether the sum is computed where it is multiplied."""
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
