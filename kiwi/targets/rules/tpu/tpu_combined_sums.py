"""XLA:TPU combines reduce-scatters of up to 8 MiB with others, and waits for them.

Sums of larger tensors move beside a kernel. Those of attention's projections have 4 MiB each.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.targets.rule import Rule, stating
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_COMBINED_BYTES = 8 * 2**20


def _gradients(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
    def loss(weights: tuple[jax.Array, ...]) -> jax.Array:
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return y.sum()

    return jax.grad(loss)(weights)


def _fully_sharded(layers: int, width: int) -> Example:
    weights = (array(width, width),) * layers
    specs = (P("x"), *[P()] * layers)
    return Example(_gradients, (array(8192, width), *weights), (8,), specs, P("x"), way=2)


def _is_combined(module: InspectedModule) -> bool:
    is_waited_for = not module.with_opcodes("AsyncCollectiveStart")
    return is_waited_for and module.collectives["reduce-scatter"].count == 1


WITNESS = Witness(
    says="Eight sums of 1 MiB are one reduce-scatter, which is waited for.",
    example=_fully_sharded(8, 512),
    shows=_is_combined,
    control=_fully_sharded(3, 2048),  # of 16 MiB each
)

RULE = Rule(
    name="tpu_combined_sums",
    does="Sums of up to 8 MiB are combined with others, and waited for.",
    component="AllReduceCombiner of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e and v5p",
    evidence=("benchmarks/schedules",),
    witness=WITNESS,
    states=stating(combined_sums_bytes=_COMBINED_BYTES),
)
