"""The target XLA:TPU, for Google's TPUs."""

from kiwi.targets.rules import (
    bound_by_bytes,
    copies_ahead,
    maps_in_readers,
    narrow_moves,
    overwritten_operands,
    whole_scans,
)
from kiwi.targets.rules.tpu import (
    maps_in_convolutions,
    maps_in_matmuls,
    products_of_vectors,
    random_bits_as_maps,
    scatters_as_maps,
    shared_kernels,
    stored_softmax,
    tpu_batched_matmuls,
    tpu_combined_small_sums,
    tpu_combined_sums,
    tpu_copies_around_all_to_alls,
    tpu_function_units,
    tpu_gathered_maps,
    tpu_gathered_results,
    tpu_hoisted_copies,
    tpu_images,
    tpu_late_constants,
    tpu_narrow_operands,
    tpu_rows_of_gathers,
    tpu_scattered_sums,
    tpu_sums_behind,
    tpu_tiles,
    tpu_windowed_einsums,
    unfused_strides,
)
from kiwi.targets.target import Target
from kiwi.xla.tpu.compiler import TPU as COMPILER

TPU = Target(
    (
        # Fusion.
        maps_in_readers.RULE,
        maps_in_matmuls.RULE,
        maps_in_convolutions.RULE,
        products_of_vectors.RULE,
        stored_softmax.RULE,
        scatters_as_maps.RULE,
        random_bits_as_maps.RULE,
        unfused_strides.RULE,
        shared_kernels.RULE,
        # Buffers and layouts.
        tpu_tiles.RULE,
        tpu_images.RULE,
        tpu_rows_of_gathers.RULE,
        narrow_moves.RULE,
        tpu_narrow_operands.RULE,
        overwritten_operands.RULE,
        whole_scans.RULE,
        tpu_gathered_maps.RULE,
        tpu_batched_matmuls.RULE,
        # Collectives.
        tpu_scattered_sums.RULE,
        tpu_sums_behind.RULE,
        tpu_combined_sums.RULE,
        tpu_gathered_results.RULE,
        tpu_combined_small_sums.RULE,
        tpu_copies_around_all_to_alls.RULE,
        bound_by_bytes.RULE,
        # Form of the emitted program.
        tpu_windowed_einsums.RULE,
        tpu_function_units.RULE,
        tpu_late_constants.RULE,
        tpu_hoisted_copies.RULE,
        copies_ahead.RULE,
    ),
    COMPILER,
    observed_on="v5e",
)
