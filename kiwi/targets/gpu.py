"""XLA:GPU, for NVIDIA's GPUs."""

from kiwi.targets.rules import (
    backend_traits,
    copies_ahead,
    cublas_epilogues,
    cublas_workspace,
    gpu_convolution_sums,
    gpu_copied_stacks,
    gpu_programs,
    gpu_transposed_operands,
    interleaved_sums,
    maps_in_readers,
    max_pooling,
    narrow_moves,
    overwritten_operands,
    shared_kernels,
    softmax_rows,
    whole_scans,
)
from kiwi.targets.target import Target
from kiwi.xla.gpu.compiler import GPU as COMPILER

GPU = Target(
    (
        # What is fused.
        maps_in_readers.RULE,
        interleaved_sums.RULE,
        cublas_epilogues.RULE,
        shared_kernels.UPDATES,
        softmax_rows.RULE,
        # What lies where.
        narrow_moves.RULE,
        overwritten_operands.RULE,
        overwritten_operands.NOT_OF_SUMMED_COLUMNS,
        whole_scans.RULE,
        max_pooling.SELECTED,
        max_pooling.ZEROS,
        max_pooling.ZEROS_OF_RELU,
        cublas_workspace.RULE,
        gpu_transposed_operands.RULE,
        gpu_copied_stacks.RULE,
        # Collectives.
        gpu_convolution_sums.RULE,
        backend_traits.GATHERS_FIRST_DIMENSION,
        backend_traits.COMBINED_COLLECTIVES,
        backend_traits.BOUND_BY_BYTES,
        # Programs.
        gpu_programs.TRANSPOSED_PRODUCTS,
        gpu_programs.OFFLOADING,
        copies_ahead.RULE,
    ),
    COMPILER,
)
