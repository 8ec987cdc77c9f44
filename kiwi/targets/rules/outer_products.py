"""A matmul that contracts nothing is a multiplication, which fuses like any other.

`jnp.einsum("btd,dn->btdn", x, p)` is one: the inputs of a state-space model's scan. So is a matmul
over a dimension of size one.
"""

import jax
import jax.numpy as jnp

from kiwi.targets.rule import Rule, fusing
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_ROWS, _COLUMNS = 2048, 1024


def _outer(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sin(jnp.einsum("t,n->tn", x, y)).sum(0)


def _matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.sin(x @ y).sum(0)


def _multiplies_with_the_sine(module: InspectedModule) -> bool:
    return len(module.with_opcodes("multiply", "sine")) == 1


WITNESS = Witness(
    says="The kernel that computes the sine multiplies.",
    example=Example(_outer, (array(_ROWS), array(_COLUMNS))),
    shows=_multiplies_with_the_sine,
    control=Example(_matmul, (array(_ROWS, 512), array(512, _COLUMNS))),
)


RULE = Rule(
    name="outer_products",
    does="A matmul that contracts nothing, or a dimension of size one, is a multiplication.",
    component="AlgebraicSimplifier::HandleDot",
    observed="jax 0.10.2, H100, v5e and CPU",
    evidence=("tests/hlo/test_opcodes.py", "benchmarks/field"),
    witness=WITNESS,
    states=fusing(outer_products=True),
)
