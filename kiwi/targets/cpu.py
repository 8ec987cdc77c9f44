"""The target XLA:CPU, which plans for virtual devices."""

from kiwi.targets.rules import (
    max_pooling_selected,
    max_pooling_zeros,
    narrow_moves,
    outer_products,
    overwritten_operands,
    whole_scans,
)
from kiwi.targets.rules.cpu import (
    cpu_all_reduces,
    cpu_bfloat16_as_float32,
    cpu_copied_operands,
    cpu_max_pooling_indices,
    cpu_row_major_ffts,
    cpu_schedule,
    cpu_sums_elsewhere,
    cpu_windowed_operands,
    cpu_zeros_of_scatters,
)
from kiwi.targets.target import Target
from kiwi.xla.cpu.compiler import CPU as COMPILER

CPU = Target(
    (
        outer_products.RULE,
        cpu_bfloat16_as_float32.RULE,
        narrow_moves.RULE,
        cpu_all_reduces.RULE,
        cpu_sums_elsewhere.RULE,
        overwritten_operands.RULE,
        cpu_windowed_operands.RULE,
        whole_scans.RULE,
        max_pooling_selected.RULE,
        max_pooling_zeros.RULE,
        cpu_max_pooling_indices.RULE,
        cpu_zeros_of_scatters.RULE,
        cpu_copied_operands.RULE,
        cpu_row_major_ffts.RULE,
        cpu_schedule.RULE,
    ),
    COMPILER,
    observed_on="cpu",
)
