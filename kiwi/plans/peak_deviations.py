"""The buffers on which a compiled program and its plan disagree at the compiled peak.

The program is compared with the plan at the unit that runs at the compiled peak. XLA may run units
in another order, above all where collectives overlap with computation and memory is plentiful. So a
buffer that only one side holds comes with its cause:

- *ahead of its turn*: the plan computes the buffer later.
- *longer than planned*: the plan has freed the buffer before.
- *not held*: XLA computes the buffer inside of another kernel or later, or has freed it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from kiwi.plans.deviations import MEMORY, KernelDeviation, grouped
from kiwi.plans.memory_report import MemoryDifference, memory_report, unit_at_peak
from kiwi.plans.record import PlanRecord

AHEAD, LONGER, NOT_HELD = "ahead of its turn", "longer than planned", "not held"

NO_OPERATOR = "buffers of no operator"
"""The name of buffers whose XLA instruction belongs to no unit, most often values that a loop
carries."""


def peak_rows(plan: PlanRecord) -> Iterable[KernelDeviation]:
    """Yields the buffers at the compiled peak on which plan and program disagree. Buffers of equal
    units with the same cause share one row.

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
"""The predicted and the compiled bytes of each unit."""


def _by_cause(
    differences: Iterable[MemoryDifference], peak_unit: int
) -> Mapping[tuple[str, str], _Bytes]:
    """Returns the differences of units, by the prefix of their rows' names and by cause."""
    held: dict[tuple[str, str], dict[int, tuple[int, int]]] = defaultdict(dict)
    for row in differences:
        if row.unit >= 0:
            prefix = "copy for " if row.what == "copy" else ""
            held[prefix, _cause(row, peak_unit)][row.unit] = row.predicted_bytes, row.compiled_bytes
    return held


def _cause(row: MemoryDifference, peak_unit: int) -> str:
    """Returns why only one side holds a buffer; "" if both sides hold it in different sizes."""
    if not row.compiled_bytes:
        return NOT_HELD
    if row.predicted_bytes:
        return ""
    return AHEAD if row.unit > peak_unit else LONGER
