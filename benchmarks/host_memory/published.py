"""Llama 2 as it was trained on v5e, planned for the memory that it used there, and compiled.

    python -m benchmarks.host_memory.published

axlearn (`fuji.py`) publishes figures for steps of 4 Mi tokens on 4 slices of 256 v5e, with one
sequence of 4,096 tokens on each chip. The 7B model keeps the results of matmuls, takes 14 GB of a
chip's 16 GB, and 2.21 s. The 70B model keeps all of these results on the host and takes 14.6 GB;
its time is not published. Both are planned freely for these bytes, with and without host memory,
and compiled for all 1,024 chips.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.published.price import as_run, unsharded
from benchmarks.published.rows import PublishedStep, read
from benchmarks.tpu.book import Book, Row
from kiwi.errors import BudgetNotMetError, KiwiError

HOST_BUDGET = "384GB"
"""The memory of Google's hosts of eight v5e."""

_OUT = flags.DEFINE_string("out", "benchmarks/host_memory/published.json", "Read and written.")
_REDO = flags.DEFINE_list("redo", [], "Beginnings of keys of rows that are measured again.")
_STEPS = flags.DEFINE_list("steps", [], "Only steps whose names contain one of these.")
_EFFORT = flags.DEFINE_string("effort", "quick", "Of each search.")


@dataclass(frozen=True)
class Trained:
    """A published step, the bytes that it used, and its seconds; None if these are not
    published."""

    step: PublishedStep
    memory_bytes: int
    seconds: float | None


def trained() -> Iterator[Trained]:
    """Yields both steps."""
    small = next(step for step in read() if step.name == "llama2-7b" and step.chip == "v5e")
    yield Trained(small, 14_000_000_000, small.seconds)
    sizes = {"layers": 80, "width": 8192, "heads": 64, "kv_heads": 8, "mlp_width": 28672}
    large = replace(small, name="llama2-70b", offloaded=True, **sizes)
    yield Trained(large, 14_600_000_000, None)


def main(_: list[str]) -> None:
    """Plans the missing rows, and writes the table."""
    jax.config.update("jax_platforms", "cpu")
    module = "benchmarks.host_memory.published"
    book = Book(Path(_OUT.value), tuple(_REDO.value), module=module)
    for training in trained():
        if _STEPS.value and not any(part in training.step.name for part in _STEPS.value):
            continue
        for host in (None, HOST_BUDGET):
            key = f"{training.step.name}{' with host' if host else ''}"
            book.row(key, lambda training=training, host=host: planned(training, host))
    book.write_table("Llama 2 on 4 slices of 256 v5e", table(book.rows))


def planned(each: Trained, host: str | None) -> Row:
    """Returns the figures of a plan for the published memory: predicted, and as XLA:TPU compiles
    it."""
    function, args = unsharded(each.step, each.step.batch)
    axes: Mapping[str, int] = each.step.axes
    row: dict[str, Any] = {"memory_bytes": each.memory_bytes, "published_seconds": each.seconds}
    try:
        plan = kiwi.plan(
            function,
            *args,
            donate_argnums=0,
            mesh_shape=tuple(axes.values()),
            axis_names=tuple(axes),
            profile=each.step.chip,
            verify="tpu",
            effort=_EFFORT.value,
            memory_budget=each.memory_bytes,
            host_memory_budget=host,
        )
    except KiwiError as error:
        least_bytes = error.least_peak_bytes if isinstance(error, BudgetNotMetError) else None
        return {**row, "refused_bytes": least_bytes, "refused": str(error).splitlines()[0]}
    assert plan.compiled is not None
    return {
        **row,
        "as_run_seconds": as_run(each.step).step_seconds,
        "step_seconds": plan.estimate.step_seconds,
        "compiled_seconds": plan.compiled.step_seconds,
        "estimated_bytes": plan.estimate.peak_bytes,
        "compiled_bytes": plan.compiled.peak_bytes,
        "host_estimated_bytes": plan.estimate.host_peak_bytes,
        "host_compiled_bytes": plan.compiled.host_peak_bytes,
        "planning_seconds": round(plan.planning_seconds, 1),
        **{f"{name}_operators": count for name, count in plan.residency_counts().items()},
    }


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the lines of the table, with one row for each plan."""
    yield (
        "| step | GB used there | compiled | on the host | published s | as run, predicted s "
        "| plan s | compiled s | recomputed | offloaded |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for key, row in rows.items():
        used = f"{row['memory_bytes'] / 1e9:.1f}"
        if "refused" in row:
            yield f"| {key} | {used} | {row['refused']} | | | | | | | |"
            continue
        published = row["published_seconds"]
        cells = [
            key,
            used,
            f"{row['compiled_bytes'] / 1e9:.2f}",
            f"{row['host_compiled_bytes'] / 1e9:.2f}",
            "" if published is None else f"{published:.2f}",
            *(f"{row[f'{name}_seconds']:.2f}" for name in ("as_run", "step", "compiled")),
            *(str(row.get(f"{name}_operators", 0)) for name in ("recompute", "offload")),
        ]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    app.run(main)
