"""XLA:TPU combines all-reduces up to the size that plans allow, 1 MiB.

The fact is data (`kiwi/mesh/backends.toml`): prices of moves are made below all rooms that know
programs.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array


def _gradients(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
    def loss(weights: tuple[jax.Array, ...]) -> jax.Array:
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return y.sum()

    return jax.grad(loss)(weights)


_LAYERS = 8


def _data_parallel(width: int) -> Example:
    weights = (array(width, width),) * _LAYERS
    specs = (P("x"), *[P()] * _LAYERS)
    return Example(_gradients, (array(8192, width), *weights), (8,), specs, P())


WITNESS = Witness(
    says="Eight sums of 64 KiB are one all-reduce.",
    example=_data_parallel(128),
    shows=lambda module: module.collectives["all-reduce"].count == 1,
    control=_data_parallel(512),  # of 1 MiB each
)

RULE = Rule(
    name="tpu_combined_small_sums",
    does="Sums are combined to the 1 MiB that plans allow.",
    component="xla_jf_crs_combiner_threshold_in_bytes",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e: 14 for 27 all-reduces of a data-parallel convnet "
    "on eight",
    evidence=("benchmarks/schedules",),
    witness=WITNESS,
)
