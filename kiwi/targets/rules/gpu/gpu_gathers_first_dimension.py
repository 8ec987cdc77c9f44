"""XLA:GPU gathers and scatters along the first dimension of a buffer only.

Any other dimension is transposed to the front before the collective, or back after it. The rule
states no fact in Python: the fact is data in `kiwi/mesh/backends.toml`, because `kiwi.mesh` prices
moves and knows no programs.
"""

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_SHAPE, _ELEMENTS = (64, 64, 64), 64**3


def _gathered_along(cut: P) -> Example:
    return Example(jnp.negative, (array(*_SHAPE),), (4,), (cut,), P())


def _transposes(module: InspectedModule) -> bool:
    return any(kernel.writes(_ELEMENTS) for kernel in module.with_opcodes("transpose"))


WITNESS = Witness(
    says="What is gathered along the second dimension is transposed as a whole.",
    example=_gathered_along(P(None, "x")),
    shows=_transposes,
    control=_gathered_along(P("x")),
)

RULE = Rule(
    name="gpu_gathers_first_dimension",
    does="Collectives gather and scatter the first dimension of a buffer alone. Another one is "
    "transposed before or behind.",
    component="GpuLayoutAssignment, NCCL",
    observed="jax 0.10.2, H100",
    evidence=("tests/xla/gpu/test_compiler.py", "tests/mesh"),
    witness=WITNESS,
)
