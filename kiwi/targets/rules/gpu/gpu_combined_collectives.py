"""XLA:GPU combines collectives that overlap, up to the size that plans allow.

Groups of equal collectives are filled to two thirds of it on average. The fact is data
(`kiwi/mesh/backends.toml`): prices of moves are made below all rooms that know programs.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

_ALLOWED_BYTES = 32 * 2**20


def _gradients(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
    def loss(weights: tuple[jax.Array, ...]) -> jax.Array:
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return y.sum()

    return jax.grad(loss)(weights)


def _data_parallel(count: int, width: int) -> Example:
    weights = (array(width, width),) * count
    specs = (P("x"), *[P()] * count)
    return Example(_gradients, (array(4096, width), *weights), (8,), specs, P(), way=0)


def _is_combined(module: InspectedModule) -> bool:
    sums = module.collectives["all-reduce"]
    return _ALLOWED_BYTES / 2 <= sums.bytes / sums.count <= _ALLOWED_BYTES


WITNESS = Witness(
    says="Gradients of 4 MiB are summed in groups of 16 to 32 MiB.",
    example=_data_parallel(12, 1024),
    shows=_is_combined,
    control=_data_parallel(2, 4096),  # of 64 MiB each
)

RULE = Rule(
    name="gpu_combined_collectives",
    does="Collectives that overlap are combined to two thirds of the 32 MiB that plans allow.",
    component="AllGatherCombiner, AllReduceCombiner, ReduceScatterCombiner",
    observed="jax 0.10.2, H100: 24 collectives of 491 MB in all for a GPT and a ViT on eight",
    evidence=("benchmarks/schedules",),
    witness=WITNESS,
)
