"""XLA:TPU computes a matmul in pieces, while its operand is gathered or its result scattered."""

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array


def _gathered(way: int) -> Example:
    """Returns a matmul just large enough for XLA:TPU to compute it in pieces. Its columns are
    gathered. `way` is as in `Example`."""
    rows = array(65_536, 8192, dtype="bfloat16")
    columns = array(8192, 8192, dtype="bfloat16")
    return Example(jnp.matmul, (rows, columns), (8,), (P("x"), P(None, "x")), P("x"), way=way)


WITNESS = Witness(
    says="Pieces of the operand are passed on between matmuls.",
    example=_gathered(way=0),
    shows=lambda module: "collective-permute" in module.collectives,
    control=_gathered(way=1),
)

RULE = Rule(
    name="tpu_windowed_einsums",
    does="Matmuls run while their operands are gathered, and their results scattered, piece by "
    "piece (Wang et al., Overlap communication with dependent computation via decomposition, "
    "ASPLOS 2023).",
    component="WindowedEinsumHandler",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("benchmarks/schedules",),
    witness=WITNESS,
    states=stating(pipelines_matmuls=True),
)
