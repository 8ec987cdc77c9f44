"""XLA:CPU, for virtual devices."""

from kiwi.targets.rules import (
    cpu_collectives,
    cpu_copied_operands,
    cpu_row_major_ffts,
    cpu_schedule,
    cpu_zeros_of_scatters,
    max_pooling,
    narrow_moves,
    overwritten_operands,
    whole_scans,
)
from kiwi.targets.target import Target
from kiwi.xla.cpu.compiler import CPU as COMPILER

CPU = Target(
    (
        narrow_moves.BFLOAT16_AS_FLOAT32,
        narrow_moves.RULE,
        cpu_collectives.ALL_REDUCES,
        cpu_collectives.SUMS_ELSEWHERE,
        overwritten_operands.RULE,
        overwritten_operands.OF_WINDOWS,
        whole_scans.RULE,
        max_pooling.SELECTED,
        max_pooling.ZEROS,
        max_pooling.INDICES,
        cpu_zeros_of_scatters.RULE,
        cpu_copied_operands.RULE,
        cpu_row_major_ffts.RULE,
        cpu_schedule.RULE,
    ),
    COMPILER,
)
