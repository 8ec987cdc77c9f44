"""The kernels of a plan whose memory, compute time or communication time differs between the
estimate and the compiled program.

`kiwi.plans.deviations` explains how both sides are attributed to units and grouped.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kiwi.errors import InvalidArgumentError
from kiwi.messages import topics
from kiwi.plans.deviations import (
    COMMUNICATION,
    COMPUTE,
    MEMORY,
    KernelDeviation,
    seconds_rows,
)
from kiwi.plans.peak_deviations import peak_rows
from kiwi.plans.record import PlanRecord
from kiwi.plans.summary import table
from kiwi.sizes import format_bytes, format_seconds
from kiwi.xla.compiler import Compiler
from kiwi.xla.compilers import COMPILERS, named
from kiwi.xla.read.collectives import AxisUse
from kiwi.xla.simulated import UnitSeconds, seconds_by_unit

_MOST_ROWS = 8


@dataclass(frozen=True)
class Deviation:
    """The estimate and the compiled program of one plan, compared. Its text consists of tables.

    - `target`: the compiler of the program.
    - `predicted_uses`, `compiled_uses`: the collectives by kind and mesh axes.
    - `kernels`: the deviating kernels by quantity. In each of the three quantities, the largest
      deviation comes first.
    """

    target: str
    predicted_peak_bytes: int
    compiled_peak_bytes: int
    predicted_step_seconds: float
    compiled_step_seconds: float
    predicted_uses: tuple[AxisUse, ...]
    compiled_uses: tuple[AxisUse, ...]
    kernels: tuple[KernelDeviation, ...]

    @property
    def peak_ratio(self) -> float:
        """The estimated peak divided by the compiled peak."""
        return self.predicted_peak_bytes / max(1, self.compiled_peak_bytes)

    @property
    def time_ratio(self) -> float:
        """The estimated step time divided by the step time of the compiled schedule."""
        return self.predicted_step_seconds / self.compiled_step_seconds

    def of(self, what: str) -> tuple[KernelDeviation, ...]:
        """The kernels that deviate in the quantity `what`: `MEMORY`, `COMPUTE` or
        `COMMUNICATION`."""
        return tuple(kernel for kernel in self.kernels if kernel.what == what)

    def __str__(self) -> str:
        lines = [
            f"Peak {format_bytes(self.predicted_peak_bytes)} estimated, "
            f"{format_bytes(self.compiled_peak_bytes)} compiled for {self.target} "
            f"({self.peak_ratio:.2f})",
            f"Step {format_seconds(self.predicted_step_seconds)} estimated, "
            f"{format_seconds(self.compiled_step_seconds)} compiled ({self.time_ratio:.2f})",
            _uses_text(self.predicted_uses, self.compiled_uses),
        ]
        tables = [_kernels_text(quantity, self.of(quantity)) for quantity in _TITLES]
        return "\n\n".join(["\n".join(lines), *tables])


def deviation(plan: PlanRecord) -> Deviation:
    """Compares a plan with its compiled program.

    **Raises:** `InvalidArgumentError` if the plan was not compiled; the errors of the compiler's
    `compile`.
    """
    compiled = plan.compiled
    if compiled is None or compiled.step_seconds is None or compiled.memory is None:
        raise InvalidArgumentError(
            "The plan has no compiled program to compare with.",
            topic=topics.NOT_COMPILED,
            suggestion='verify="auto", or ' + ", ".join(f'"{name}"' for name in COMPILERS) + ".",
        )
    kernels = [
        *peak_rows(plan),
        *seconds_rows(plan, _compiled_seconds(plan)),
    ]
    return Deviation(
        compiled.target,
        plan.estimate.peak_bytes,
        compiled.peak_bytes,
        plan.estimate.step_seconds,
        compiled.step_seconds,
        plan.estimate.collective_uses,
        compiled.collective_uses,
        tuple(sorted(kernels, key=lambda kernel: (kernel.what, -abs(kernel.excess), kernel.name))),
    )


def _compiled_seconds(plan: PlanRecord) -> Mapping[int, UnitSeconds]:
    """Returns the seconds of the plan's program by unit. The program of a plan from a file is
    compiled once more."""
    assert plan.compiled is not None and plan.compiled.time is not None
    if plan.compiled.time.by_unit:
        return plan.compiled.time.by_unit
    compiler = _compiler_of(plan)
    step = plan.step_for(compiler)
    schedule = compiler.compile(step).schedule
    assert schedule is not None
    return seconds_by_unit(schedule, plan.mesh, step.kernel_seconds, step.unit_runs)


def _compiler_of(plan: PlanRecord) -> Compiler:
    """Returns the compiler of the plan's program, with the same overlap of collectives."""
    assert plan.compiled is not None
    compiler = named(plan.compiled.target)
    is_other_way = plan.compiled.is_overlapping and compiler.overlapping
    return compiler.overlapping[plan.compiled.overlap] if is_other_way else compiler


_TITLES: Mapping[str, str] = {
    MEMORY: "Memory at the compiled peak",
    COMPUTE: "Seconds of kernels",
    COMMUNICATION: "Seconds of collectives, if nothing hid them",
}


def _kernels_text(what: str, rows: tuple[KernelDeviation, ...]) -> str:
    if not rows:
        return f"{_TITLES[what]}: as estimated"
    shown = format_bytes if what == MEMORY else format_seconds
    cells = [
        (
            shown(row.predicted),
            shown(row.compiled),
            f"{len(row.units)} x" if len(row.units) > 1 else "",
            row.name,
            "x".join(map(str, row.shape)),
            row.source_line,
        )
        for row in rows
    ]
    header = ("estimated", "compiled", "", "kernel", "shape", "source")
    return f"{_TITLES[what]}\n{table(header, cells, _MOST_ROWS)}"


def _uses_text(predicted: tuple[AxisUse, ...], compiled: tuple[AxisUse, ...]) -> str:
    """Returns lines with the count and the bytes of collectives by kind and axes, estimated and
    compiled."""
    sides = [{(use.kind, use.axes): use for use in uses} for uses in (predicted, compiled)]
    parts = []
    for kind, axes in dict.fromkeys([*sides[0], *sides[1]]):
        counts = [side.get((kind, axes)) for side in sides]
        texts = [
            "none" if use is None else f"{use.count} ({format_bytes(use.bytes)})" for use in counts
        ]
        along = ",".join(axes) if axes is not None else "no axes"
        parts.append(f"{kind} along {along}: {texts[0]} estimated, {texts[1]} compiled")
    return "\n".join(parts) if parts else "No collectives"
