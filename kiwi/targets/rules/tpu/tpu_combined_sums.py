"""XLA:TPU combines reduce-scatters of up to 8 MiB with others, and waits for them.

Reduce-scatters of larger tensors move beside a kernel.
"""

from kiwi.targets.rule import Rule, stating
from kiwi.targets.summed_gradients import fully_sharded
from kiwi.targets.witness import Witness
from kiwi.xla.read.inspected import InspectedModule

_COMBINED_BYTES = 8 * 2**20
"""The size up to which reduce-scatters are combined. A larger one moves beside a kernel."""


def _is_combined(module: InspectedModule) -> bool:
    is_waited_for = not module.with_opcodes("AsyncCollectiveStart")
    return is_waited_for and module.collectives["reduce-scatter"].count == 1


WITNESS = Witness(
    says="Eight sums of 1 MiB are one reduce-scatter, which is waited for.",
    example=fully_sharded(8192, 8, 512, way=2),
    shows=_is_combined,
    control=fully_sharded(8192, 3, 2048, way=2),  # of 16 MiB each
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
