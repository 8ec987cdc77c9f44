"""What XLA:TPU is told when it compiles a plan."""

TPU_COMPILER_OPTIONS = {
    "xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000,
    "xla_tpu_enable_async_collective_fusion": False,
    "xla_jf_rematerialization_percent_shared_memory_limit": 100_000,
    "xla_tpu_run_space_to_batch": False,
    "xla_tpu_run_space_to_batch_on_new_platforms": False,
}
"""Options of XLA:TPU under which it runs a plan as it was made.

- Windowed einsums make chains of permutations of the collectives around a matmul, which hold
  other buffers. No einsum reaches this size.
- Asynchronous collective fusion runs a collective beside a matmul, and holds the result longer.
- Its own rematerialisation recomputes what the plan keeps, near the limit. It never begins under
  a limit of this many per cent.
- Space to batch turns parts of images into a larger batch where a convolution's is small, and holds
  several copies of them: 484 MiB instead of 337 for a U-Net (`benchmarks/fidelity`, v5e, (2, 4)).
"""

TPU_CHECK_OPTIONS = {**TPU_COMPILER_OPTIONS, "xla_msa_enable": "DISABLED"}
"""Of a check: every buffer is in HBM. A run also places some in VMEM, of which the budget knows
nothing."""
