"""Whether XLA:TPU generates code for plans under the options that they run with.

A check ends before code generation, which takes long. Kernels that also move a collective need more
of VMEM's stack than XLA:TPU reserves, and XLA:TPU reports that only when it generates code
(`kiwi.xla.tpu.compiler.TPU_REDUCING_OPTIONS`). Each plan is therefore also compiled with the
reserved stack.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax

from benchmarks.fidelity.models import MODELS
from benchmarks.tpu.book import Book, Row
from benchmarks.tpu.programs import of_module
from kiwi.xla.step import Step
from kiwi.xla.tpu.compiler import TPU, devices_of

_STACK = "xla_tpu_scoped_vmem_limit_kib"

SHARES = (None, 75)
"""Budgets, in % of the free compiled peak. None is the free plan."""

_STACK_SAID = re.compile(r"Scoped allocation with size \S+ and limit \S+")


def measure(book: Book, names: Iterable[str], seconds: float) -> None:
    """Measures the missing rows."""
    for name in names:
        peak_bytes: int | None = None
        for share in SHARES:
            budget = None if share is None else share * int(peak_bytes or 0) // 100
            row = book.row(f"{name} {share or 'free'}", lambda: _row(name, budget, seconds))  # noqa: B023
            peak_bytes = peak_bytes or row["peak_bytes"]


def _row(name: str, budget: int | None, seconds: float) -> Row:
    model = MODELS[name]
    plan_options = {"mesh_shape": (2, 4), "profile": "v5e", "verify": "tpu", "effort": "quick"}
    plan, _ = of_module(model.module, model.config).nearest(
        budget, time_limit_seconds=seconds, **plan_options
    )
    assert plan.compiled is not None
    options = plan.run_options(TPU)
    reserved = with_reserved_stack(options)
    return {
        "peak_bytes": plan.compiled.overlapping_peak_bytes or plan.compiled.peak_bytes,
        "way": plan.compiled.overlap if plan.compiled.is_overlapping else None,
        "waits_for_gradients": plan.execution.gradients_in_time,
        **_generated(plan.step, options, "run"),
        **(_generated(plan.step, reserved, "reserved") if reserved != options else {}),
    }


def with_reserved_stack(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a run, with only the stack of VMEM that XLA:TPU reserves."""
    return {key: value for key, value in options.items() if key != _STACK}


def _generated(step: Step, options: Mapping[str, Any], name: str) -> Row:
    """Returns the seconds of the compilation, or XLA's error."""
    started = time.monotonic()
    try:
        step.compile(devices_of(step.mesh), options)
    except jax.errors.JaxRuntimeError as error:
        stack_error = _STACK_SAID.search(str(error))
        return {f"{name}_error": stack_error[0] if stack_error else str(error).splitlines()[0]}
    return {f"{name}_seconds": time.monotonic() - started}


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the lines of the table, with one row for each plan."""
    yield "| plan | way to overlap | waits for gradients | as it runs | with XLA's own stack |"
    yield "| --- | --- | --- | --- | --- |"
    for key, row in rows.items():
        cells = (_cell(row, name) for name in ("run", "reserved"))
        waits = "yes" if row["waits_for_gradients"] else "no"
        yield f"| {key} | {row['way']} | {waits} | {' | '.join(cells)} |"


def _cell(row: Row, name: str) -> str:
    seconds = row.get(f"{name}_seconds")
    return row.get(f"{name}_error", "–") if seconds is None else f"{seconds:.0f} s"
