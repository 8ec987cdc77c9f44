"""Where the compiled program of a plan differs so much that its user should know."""

from collections.abc import Iterable

from kiwi.campaign.shares import NOTICED_KERNEL
from kiwi.plans.deviations import KernelDeviation, seconds_rows
from kiwi.plans.peak_deviations import peak_rows
from kiwi.plans.plan import Plan
from kiwi.plans.summary import has_other_peak


def noticed_deviations(plan: Plan) -> tuple[KernelDeviation, ...]:
    """Where the compiled program differs from the plan: kernels by their seconds, then buffers at
    the peak, each with the largest difference first."""
    return (*_late_kernels(plan), *_buffers_at_peak(plan))


def _late_kernels(plan: Plan) -> tuple[KernelDeviation, ...]:
    """The kernels whose seconds differ from the plan's."""
    if plan.compiled is None or plan.compiled.time is None or not plan.breakdown.has_costs:
        return ()
    rows = seconds_rows(plan, plan.compiled.time.by_unit)
    return _noticed(rows, plan.compiled.time.step_seconds)


def _buffers_at_peak(plan: Plan) -> tuple[KernelDeviation, ...]:
    """The buffers that explain the compiled peak, if it is another one than planned."""
    if plan.compiled is None or plan.compiled.memory is None:
        return ()
    return _noticed(peak_rows(plan), plan.peak_bytes) if has_other_peak(plan) else ()


def _noticed(rows: Iterable[KernelDeviation], whole: float) -> tuple[KernelDeviation, ...]:
    """The rows that differ by a noticeable part of the whole, the largest difference first."""
    large = (row for row in rows if abs(row.excess) >= NOTICED_KERNEL * whole)
    return tuple(sorted(large, key=lambda row: (-abs(row.excess), row.name)))
