"""What all devices of a backend do, whatever the program is.

The facts are data (`kiwi/mesh/backends.toml`), because prices of moves are made below all rooms
that know programs. These rules say why each of them holds.
"""

from kiwi.targets.rule import Rule

GATHERS_FIRST_DIMENSION = Rule(
    name="gpu_gathers_first_dimension",
    does="Collectives gather and scatter the first dimension of a buffer alone. Another one is "
    "transposed before or behind.",
    component="GpuLayoutAssignment, NCCL",
    observed="jax 0.10.2, H100",
    evidence=("tests/xla/gpu/test_compiler.py", "tests/mesh"),
)

COMBINED_COLLECTIVES = Rule(
    name="gpu_combined_collectives",
    does="Collectives that overlap are combined to two thirds of the 32 MiB that plans allow: 24 "
    "collectives of 491 MB in all for a GPT and a ViT on eight H100s.",
    component="AllGatherCombiner, AllReduceCombiner, ReduceScatterCombiner",
    observed="jax 0.10.2, H100",
    evidence=("benchmarks/schedules",),
)

COMBINED_SUMS = Rule(
    name="tpu_combined_small_sums",
    does="Sums are combined to the 1 MiB that plans allow: 14 for 27 all-reduces of a "
    "data-parallel convnet on eight v5es.",
    component="xla_jf_crs_combiner_threshold_in_bytes",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("benchmarks/schedules",),
)

COPIES_AROUND_ALL_TO_ALLS = Rule(
    name="tpu_copies_around_all_to_alls",
    does="What an all-to-all moves is copied to the order in which it is split, or from that in "
    "which it is joined: between matmuls mostly once, between maps twice.",
    component="layout assignment of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("benchmarks/resharding",),
)

BOUND_BY_BYTES = Rule(
    name="bound_by_bytes",
    does="What a kernel maps, sums up or transposes takes what reading and writing it takes; "
    "functions are computed meanwhile. On CPUs that depends on the function, and on which "
    "dimensions are summed over.",
    component="hardware",
    observed="H100, v5e, and CPUs of two machines",
    evidence=("tests/problem/test_recorded_seconds.py", "benchmarks/replay"),
)
