"""XLA:TPU combines small all-reduces, up to the threshold of 1 MiB that plans set.

The rule states no fact in Python: the fact is data in `kiwi/mesh/backends.toml`, because
`kiwi.mesh` prices moves and knows no programs.
"""

from kiwi.targets.rule import Rule
from kiwi.targets.summed_gradients import data_parallel
from kiwi.targets.witness import Witness

WITNESS = Witness(
    says="Eight sums of 64 KiB are one all-reduce.",
    example=data_parallel(8192, 8, 128),
    shows=lambda module: module.collectives["all-reduce"].count == 1,
    control=data_parallel(8192, 8, 512),  # of 1 MiB each
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
