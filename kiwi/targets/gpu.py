"""The target XLA:GPU, for NVIDIA's GPUs."""

from kiwi.targets.rules import (
    bound_by_bytes,
    copies_ahead,
    maps_in_readers,
    matmuls_with_vectors,
    max_pooling_selected,
    max_pooling_zeros,
    narrow_moves,
    outer_products,
    overwritten_operands,
    whole_scans,
)
from kiwi.targets.rules.gpu import (
    costly_narrow_maps,
    cublas_epilogues,
    cublas_workspace,
    gpu_combined_collectives,
    gpu_convolution_sums,
    gpu_copied_stacks,
    gpu_gathers_first_dimension,
    gpu_offloading,
    gpu_ragged_products,
    gpu_slices_in_readers,
    gpu_small_maps,
    gpu_summed_columns,
    gpu_sums_added_first,
    gpu_transposed_operands,
    gpu_transposed_products,
    gpu_zeros_of_relu,
    resampled_sums,
    shared_updates,
    softmax_rows,
)
from kiwi.targets.target import Target
from kiwi.xla.gpu.compiler import GPU as COMPILER

GPU = Target(
    (
        # Fusion.
        outer_products.RULE,
        matmuls_with_vectors.RULE,
        maps_in_readers.RULE,
        costly_narrow_maps.RULE,
        resampled_sums.RULE,
        cublas_epilogues.RULE,
        shared_updates.RULE,
        softmax_rows.RULE,
        gpu_small_maps.RULE,
        gpu_slices_in_readers.RULE,
        # Buffers and layouts.
        narrow_moves.RULE,
        overwritten_operands.RULE,
        gpu_summed_columns.RULE,
        whole_scans.RULE,
        max_pooling_selected.RULE,
        max_pooling_zeros.RULE,
        gpu_zeros_of_relu.RULE,
        cublas_workspace.RULE,
        gpu_ragged_products.RULE,
        gpu_transposed_operands.RULE,
        gpu_copied_stacks.RULE,
        # Collectives.
        gpu_convolution_sums.RULE,
        gpu_gathers_first_dimension.RULE,
        gpu_combined_collectives.RULE,
        gpu_sums_added_first.RULE,
        bound_by_bytes.RULE,
        # Form of the emitted program.
        gpu_transposed_products.RULE,
        gpu_offloading.RULE,
        copies_ahead.RULE,
    ),
    COMPILER,
    observed_on="h100-sxm",
)
