"""The differences between a plan and its compiled program that are large enough to report."""

from collections.abc import Iterable

from kiwi.campaign.shares import NOTICED_KERNEL
from kiwi.plans.deviations import KernelDeviation, seconds_rows
from kiwi.plans.peak_deviations import peak_rows
from kiwi.plans.plan import Plan
from kiwi.plans.summary import has_other_peak


def noticed_deviations(plan: Plan) -> tuple[KernelDeviation, ...]:
    """Returns the large differences between a plan and its compiled program: kernels by their
    seconds, then buffers by their bytes at the peak, each list with the largest difference first.
    """
    return (*_late_kernels(plan), *_buffers_at_peak(plan))


def _late_kernels(plan: Plan) -> tuple[KernelDeviation, ...]:
    """Returns the kernels whose seconds differ much from the plan's."""
    if plan.compiled is None or plan.compiled.time is None or not plan.breakdown.has_costs:
        return ()
    rows = seconds_rows(plan, plan.compiled.time.by_unit)
    return _noticed(rows, plan.compiled.time.step_seconds)


def _buffers_at_peak(plan: Plan) -> tuple[KernelDeviation, ...]:
    """Returns the buffers that explain the compiled peak, if it differs from the planned one."""
    if plan.compiled is None or plan.compiled.memory is None:
        return ()
    return _noticed(peak_rows(plan), plan.peak_bytes) if has_other_peak(plan) else ()


def _noticed(rows: Iterable[KernelDeviation], whole: float) -> tuple[KernelDeviation, ...]:
    """Returns the rows whose difference is at least the part `NOTICED_KERNEL` of `whole`, the
    largest difference first."""
    large = (row for row in rows if abs(row.excess) >= NOTICED_KERNEL * whole)
    return tuple(sorted(large, key=lambda row: (-abs(row.excess), row.name)))
