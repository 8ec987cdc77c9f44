"""XLA:CPU writes a sum over devices to a separate buffer, and not over the summands."""

from collections.abc import Collection, Sequence

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.hlo.program import Equation
from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array


def _sums_elsewhere(root: Equation, cuts: Sequence[int], scattered: Collection[int]) -> bool:
    return True


_WIDTH = 256
_MATRICES = (array(_WIDTH, _WIDTH),) * 2

WITNESS = Witness(
    says="The summands have a buffer beside the result.",
    example=Example(jnp.matmul, _MATRICES, (4,), (P(None, "x"), P("x")), P()),
    shows=lambda module: module.temporaries_of(4 * _WIDTH**2) == 1,
    control=Example(jnp.matmul, _MATRICES, (4,), (P(), P()), P()),
)

RULE = Rule(
    name="cpu_sums_elsewhere",
    does="A sum over devices has another buffer than its summands.",
    component="buffer assignment of XLA:CPU",
    observed="jax 0.10.2: a product whose operands are cut along what is summed over",
    evidence=("tests/plans/test_memory.py",),
    witness=WITNESS,
    states=stating(sums_elsewhere=_sums_elsewhere),
)
