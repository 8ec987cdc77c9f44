"""On GPUs each reader computes an addition of interleaved tensors, such as the halves of a scan.

`jax.lax.associative_scan` inserts zeros between the elements of its two halves, and adds the
halves. Each kernel that reads the sum computes it, however many kernels read it.
"""

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.hlo.chains import Chains
from kiwi.hlo.equation_kinds import interleaves
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule


def sums_interleaved(chains: Chains, index: int) -> bool:
    """Returns whether all tensors that an equation reads are padded between their elements."""
    program = chains.graph.program
    producers = [program.values[value].producer for value in program.equations[index].reads]
    return all(
        producer is not None and interleaves(program.equations[producer]) for producer in producers
    )


_ROWS, _WIDTH = 1024, 1024


def _interleaved(x: jax.Array) -> jax.Array:
    even = lax.pad(jnp.sin(x), 0.0, ((0, 1, 1), (0, 0, 0)))
    odd = lax.pad(jnp.tan(x), 0.0, ((1, 0, 1), (0, 0, 0)))
    return even + odd


def _read_twice(y: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    return y.sum(0), (y * (y.sum(0) @ w)).sum(1)


def _adds_in_each_reader(module: InspectedModule) -> bool:
    adding = [kernel for kernel in module.with_opcodes("pad", "add") if kernel.computes("reduce")]
    return len(adding) == 2 and not any(
        kernel.writes(2 * _ROWS * _WIDTH) for kernel in module.kernels
    )


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
    name="interleaved_sums",
    does="All readers of a sum of interleaved tensors compute it for themselves.",
    component="PriorityFusion",
    observed="jax 0.10.2, H100",
    evidence=("tests/hlo/test_fusion.py",),
    witness=WITNESS,
    states=fusing(sums_in_readers=(sums_interleaved,)),
)
