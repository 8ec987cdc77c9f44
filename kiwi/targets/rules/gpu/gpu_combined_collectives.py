"""XLA:GPU combines overlapping collectives, up to the threshold that plans set.

Groups of equal collectives reach two thirds of the threshold on average. The rule states no fact in
Python: the fact is data in `kiwi/mesh/backends.toml`, because `kiwi.mesh` prices moves and knows no
programs.
"""

from kiwi.targets.rule import Rule
from kiwi.targets.summed_gradients import data_parallel
from kiwi.targets.witness import Witness
from kiwi.xla.read.inspected import InspectedModule

_ALLOWED_BYTES = 32 * 2**20


def _is_combined(module: InspectedModule) -> bool:
    sums = module.collectives["all-reduce"]
    return _ALLOWED_BYTES / 2 <= sums.bytes / sums.count <= _ALLOWED_BYTES


WITNESS = Witness(
    says="Gradients of 4 MiB are summed in groups of 16 to 32 MiB.",
    example=data_parallel(4096, 12, 1024, way=0),
    shows=_is_combined,
    control=data_parallel(4096, 2, 4096, way=0),  # of 64 MiB each
)

RULE = Rule(
    name="gpu_combined_collectives",
    does="Collectives that overlap are combined to two thirds of the 32 MiB that plans allow.",
    component="AllGatherCombiner, AllReduceCombiner, ReduceScatterCombiner",
    observed="jax 0.10.2, H100: 24 collectives of 491 MB in all for a GPT and a ViT on eight",
    evidence=("benchmarks/schedules",),
    witness=WITNESS,
)
