"""What a compiled program holds at its peak otherwise than the plan.

A program is compared with the plan at the unit that runs at the compiled peak. XLA may run units in
another order, above all where collectives overlap with computation and nothing is short of memory.
So a buffer that only one side holds comes with its cause:

- *ahead of its turn*: the plan computes it later.
- *longer than planned*: the plan has freed it before.
- *not held*: XLA computes it inside of another kernel, later, or has freed it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from kiwi.plans.deviations import MEMORY, KernelDeviation, grouped
from kiwi.plans.memory_report import MemoryDifference, memory_report, unit_at_peak
from kiwi.plans.record import PlanRecord

AHEAD, LONGER, NOT_HELD = "ahead of its turn", "longer than planned", "not held"

NO_OPERATOR = "buffers of no operator"
"""The name of buffers that XLA names after none, most often those that a loop carries."""


def peak_rows(plan: PlanRecord) -> Iterable[KernelDeviation]:
    """The buffers at the compiled peak on which plan and program disagree: one row for those of
    equal units with the same cause.

    **Raises:** `InvalidArgumentError` if the plan has no compiled program.
    """
    differences = memory_report(plan).differences
    assert plan.compiled is not None and plan.compiled.memory is not None
    peak_unit = unit_at_peak(plan.compiled.memory)
    for row in differences:
        if row.unit < 0:
            pair = float(row.predicted_bytes), float(row.compiled_bytes)
            name = f"{row.what} {row.name}".strip() if row.what != "other" else NO_OPERATOR
            yield KernelDeviation(MEMORY, *pair, name, row.source_line)
    for (prefix, cause), by_unit in _by_cause(differences, peak_unit).items():
        yield from grouped(plan, MEMORY, by_unit, prefix, cause)


_Bytes = Mapping[int, tuple[int, int]]
"""By unit, the predicted and the compiled bytes."""


def _by_cause(
    differences: Iterable[MemoryDifference], peak_unit: int
) -> Mapping[tuple[str, str], _Bytes]:
    """The differences of units, by what stands before the names of their rows, and by cause."""
    held: dict[tuple[str, str], dict[int, tuple[int, int]]] = defaultdict(dict)
    for row in differences:
        if row.unit >= 0:
            prefix = "copy for " if row.what == "copy" else ""
            held[prefix, _cause(row, peak_unit)][row.unit] = row.predicted_bytes, row.compiled_bytes
    return held


def _cause(row: MemoryDifference, peak_unit: int) -> str:
    """Why only one side holds a buffer; "" if both do, in different sizes."""
    if not row.compiled_bytes:
        return NOT_HELD
    if row.predicted_bytes:
        return ""
    return AHEAD if row.unit > peak_unit else LONGER
