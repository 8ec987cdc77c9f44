"""XLA:TPU computes a large constant in each kernel that reads it, and does not store it."""

import jax
import jax.numpy as jnp
from jax import lax

from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_WIDTH = 1024


def _read_twice(c: jax.Array, x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(jnp.tanh(x + c) @ w + c) @ w


def _waves() -> jax.Array:
    rows, columns = (
        lax.broadcasted_iota("float32", (_WIDTH, _WIDTH), dimension) for dimension in (0, 1)
    )
    return jnp.sin(rows * columns)


def _holds_no_constant(module: InspectedModule) -> bool:
    is_computed_twice = sum(kernel.opcodes["sine"] for kernel in module.kernels) == 2
    is_held = any(writer.reads_nothing and writer.writes(_WIDTH**2) for writer in module.kernels)
    return is_computed_twice and not is_held


_MATRIX = array(_WIDTH, _WIDTH)

WITNESS = Witness(
    says="Both readers of a constant compute it, and no kernel writes it.",
    example=Example(lambda x, w: _read_twice(_waves(), x, w), (_MATRIX,) * 2),
    shows=_holds_no_constant,
    control=Example(lambda x, w: _read_twice(lax.sort(_waves()), x, w), (_MATRIX,) * 2),
)

RULE = Rule(
    name="tpu_late_constants",
    does="Large constants are computed where they are read.",
    component="fusion of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/emit/test_max_pooling.py",),
    witness=WITNESS,
    states=stating(makes_constants_early=False),
)
