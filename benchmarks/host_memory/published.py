"""Llama 2 as it was trained on v5e, planned for the memory that it used there, and compiled.

    python -m benchmarks.host_memory.published

axlearn (`fuji.py`) names for steps of 4 Mi tokens on 4 slices of 256 v5e, one sequence of 4,096
tokens on each chip: of the 7B model, results of matmuls kept, 14 GB of a chip's 16 and 2.21 s; of
the 70B model, all of these results on the host, 14.6 GB, and no time. Both are planned freely for
these bytes, with and without the host's memory, and compiled for all 1,024 chips.
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
"""What Google's hosts of eight v5e have."""

_OUT = flags.DEFINE_string("out", "benchmarks/host_memory/published.json", "Read and written.")
_REDO = flags.DEFINE_list("redo", [], "Beginnings of keys of rows that are measured again.")
_STEPS = flags.DEFINE_list("steps", [], "Only steps whose names contain one of these.")
_EFFORT = flags.DEFINE_string("effort", "quick", "Of each search.")


@dataclass(frozen=True)
class Trained:
    """A published step, the bytes that it used, and its seconds where they are published."""

    step: PublishedStep
    memory_bytes: int
    seconds: float | None


def trained() -> Iterator[Trained]:
    """Both steps."""
    small = next(step for step in read() if step.name == "llama2-7b" and step.chip == "v5e")
    yield Trained(small, 14_000_000_000, small.seconds)
    sizes = {"layers": 80, "width": 8192, "heads": 64, "kv_heads": 8, "mlp_width": 28672}
    large = replace(small, name="llama2-70b", offloaded=True, **sizes)
    yield Trained(large, 14_600_000_000, None)


def main(_: list[str]) -> None:
    """Plans what is missing."""
    jax.config.update("jax_platforms", "cpu")
    module = "benchmarks.host_memory.published"
    book = Book(Path(_OUT.value), tuple(_REDO.value), module=module)
    for each in trained():
        if _STEPS.value and not any(part in each.step.name for part in _STEPS.value):
            continue
        for host in (None, HOST_BUDGET):
            key = f"{each.step.name}{' with host' if host else ''}"
            book.row(key, lambda each=each, host=host: planned(each, host))
    book.write_table("Llama 2 on 4 slices of 256 v5e", table(book.rows))


def planned(each: Trained, host: str | None) -> Row:
    """What a plan for the published memory predicts, and what XLA:TPU makes of it."""
    function, args = unsharded(each.step, each.step.batch)
    axes: Mapping[str, int] = each.step.axes
    said: dict[str, Any] = {"memory_bytes": each.memory_bytes, "published_seconds": each.seconds}
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
        least = error.least_peak_bytes if isinstance(error, BudgetNotMetError) else None
        return {**said, "refused_bytes": least, "refused": str(error).splitlines()[0]}
    assert plan.compiled is not None
    return {
        **said,
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
    """One line for each plan."""
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
