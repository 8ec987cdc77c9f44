"""XLA:TPU, for Google's TPUs."""

from kiwi.targets.rules import (
    backend_traits,
    copies_ahead,
    maps_in_convolutions,
    maps_in_matmuls,
    maps_in_readers,
    max_pooling,
    narrow_moves,
    overwritten_operands,
    products_of_vectors,
    random_bits_as_maps,
    scatters_as_maps,
    shared_kernels,
    stored_softmax,
    tpu_gathered_maps,
    tpu_images,
    tpu_narrow_operands,
    tpu_programs,
    tpu_sums,
    tpu_tiles,
    unfused_strides,
    whole_scans,
)
from kiwi.targets.target import Target
from kiwi.xla.tpu.compiler import TPU as COMPILER

TPU = Target(
    (
        # What is fused.
        maps_in_readers.RULE,
        maps_in_matmuls.RULE,
        maps_in_convolutions.RULE,
        products_of_vectors.RULE,
        stored_softmax.RULE,
        scatters_as_maps.RULE,
        random_bits_as_maps.RULE,
        unfused_strides.RULE,
        shared_kernels.EVERYWHERE,
        # What lies where.
        tpu_tiles.RULE,
        tpu_images.RULE,
        narrow_moves.RULE,
        tpu_narrow_operands.RULE,
        overwritten_operands.RULE,
        whole_scans.RULE,
        max_pooling.ZEROS,
        tpu_gathered_maps.RULE,
        # Collectives.
        tpu_sums.SCATTERED,
        tpu_sums.BEHIND,
        tpu_sums.COMBINED,
        tpu_sums.GATHERED_RESULTS,
        backend_traits.COMBINED_SUMS,
        backend_traits.COPIES_AROUND_ALL_TO_ALLS,
        backend_traits.BOUND_BY_BYTES,
        # Programs.
        tpu_programs.WINDOWED_EINSUMS,
        tpu_programs.FUNCTION_UNITS,
        tpu_programs.LATE_CONSTANTS,
        tpu_programs.HOISTED_COPIES,
        copies_ahead.RULE,
    ),
    COMPILER,
)
