"""XLA:TPU copies the operand of an all-to-all to the order of the split, and the result back.

As a rule one copy remains between matmuls, and two between maps. The rule states no fact in Python:
the fact is data in `kiwi/mesh/backends.toml`, because `kiwi.mesh` prices moves and knows no
programs.
"""

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_SHAPE, _LOCAL_ELEMENTS = (64, 64, 64), 64**3 // 4


def _moved(result: P) -> Example:
    return Example(jnp.sin, (array(*_SHAPE),), (4,), (P("x"),), result)


def _copies(module: InspectedModule) -> bool:
    moves = ("copy", "reshape", "transpose")
    copies = [
        kernel
        for kernel in module.kernels
        if kernel.writes(_LOCAL_ELEMENTS) and any(kernel.computes(move) for move in moves)
    ]
    return "all-to-all" in module.collectives and len(copies) >= 2


WITNESS = Witness(
    says="Two kernels or more copy the tensor around the all-to-all.",
    example=_moved(P(None, "x")),
    shows=_copies,
    control=_moved(P("x")),
)

RULE = Rule(
    name="tpu_copies_around_all_to_alls",
    does="What an all-to-all moves is copied to the order in which it is split, or from that in "
    "which it is joined: between matmuls mostly once, between maps twice.",
    component="layout assignment of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("benchmarks/resharding",),
    witness=WITNESS,
)
