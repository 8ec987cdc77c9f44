"""On TPUs each reader computes a sum whose operands are much smaller than the sum.

Such a sum, for example the outer sum of two vectors, takes less time to compute than to read.
"""

import jax

from kiwi.hlo.chains import Chains
from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_MOST_READ = 0.5
"""The most bytes of a sum's operands, as a part of the bytes of the sum. A sum with larger operands
is stored."""


def sums_small_tensors(chains: Chains, index: int) -> bool:
    """Returns whether the operands of an equation's chain are much smaller than its result."""
    return chains.is_as_small(index, _MOST_READ)


_WIDTH = 1024


def _read_twice(y: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    return y.sum(0), (y * (y.sum(0) @ w)).sum(1)


def _adds_in_each_reader(module: InspectedModule) -> bool:
    adding = module.with_opcodes("add", "reduce")
    return len(adding) == 2 and not any(kernel.writes(_WIDTH**2) for kernel in module.kernels)


_MATRIX = array(_WIDTH, _WIDTH)

WITNESS = Witness(
    says="Two kernels add the vectors, and none writes their sum, which is a matrix.",
    example=Example(
        lambda a, b, w: _read_twice(a[:, None] + b, w), (array(_WIDTH), array(_WIDTH), _MATRIX)
    ),
    shows=_adds_in_each_reader,
    control=Example(lambda a, b, w: _read_twice(a + b, w), (_MATRIX,) * 3),
)


RULE = Rule(
    name="products_of_vectors",
    does="All readers of a sum whose operands take at most half of its bytes compute it for "
    "themselves.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("benchmarks/fidelity",),
    witness=WITNESS,
    states=fusing(sums_in_readers=(sums_small_tensors,)),
)
