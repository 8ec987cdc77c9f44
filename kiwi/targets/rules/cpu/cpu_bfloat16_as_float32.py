"""XLA:CPU's collectives convert bfloat16 to float32, and move four bytes per element."""

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_WIDTH = 256


def _gathered(dtype: str) -> Example:
    return Example(jnp.negative, (array(_WIDTH, _WIDTH, dtype=dtype),), (4,), (P("x"),), P())


def _moves_four_bytes(module: InspectedModule) -> bool:
    return module.collectives["all-gather"].bytes == 4 * _WIDTH**2


WITNESS = Witness(
    says="Four bytes are gathered for each element of an array in bfloat16.",
    example=_gathered("bfloat16"),
    shows=_moves_four_bytes,
    control=_gathered("int16"),
)

RULE = Rule(
    name="cpu_bfloat16_as_float32",
    does="Collectives move bfloat16 as float32.",
    component="FloatNormalization of XLA:CPU",
    observed="jax 0.10.2",
    evidence=("benchmarks/resharding",),
    witness=WITNESS,
    states=stating(moved_itemsizes=(("bfloat16", 4),)),
)
