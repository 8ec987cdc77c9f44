"""The memory of a program by its scheduler, and by the placement of its buffers.

Plans for one chip, free and at a share of the free peak, have only the barriers that they need.
They are compiled up to their buffer assignment: with each of XLA:TPU's schedulers, and, in the
order of the default scheduler, with buffers placed by fast merge and with other seeds.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import kiwi
from benchmarks.fidelity.models import MODELS
from benchmarks.tpu.book import Book, Row
from benchmarks.tpu.options import figures
from benchmarks.tpu.programs import of_module
from kiwi.xla.step import XLAS_OWN
from kiwi.xla.tpu.compiler import TPU, TPU_CHECK_OPTIONS

_SCHEDULER = TPU.scheduler_option
_FAST_MERGE, *_SEEDS = TPU.heaps

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "fast merge": _FAST_MERGE,
    **{
        scheduler: {_SCHEDULER: scheduler}
        for scheduler in ("list", "local_order", "bfs", "dfs", "post_order")
    },
    **{f"seed {number}": seed for number, seed in enumerate(_SEEDS, 1)},
}

SHARES = (None, 60)
"""Budgets, in % of the free compiled peak. None is the free plan."""


def measure(book: Book, names: Iterable[str], seconds: float) -> None:
    """Measures the missing rows."""
    for name in names:
        for share in SHARES:
            free = book.rows.get(f"{name} free", {})
            book.row(
                f"{name} {share or 'free'}",
                lambda name=name, share=share, free=free: _row(_plan(name, share, free, seconds)),
            )


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the lines of the table, with one row for each plan. Peaks are relative to the default
    variant."""
    yield "Peaks by XLA:TPU's schedulers, over that of its default."
    yield ""
    columns: dict[str, list[float]] = {name: [] for name in VARIANTS if name != "default"}
    yield f"| plan | predicted MiB | default MiB | {' | '.join(columns)} |"
    yield "| --- |" + " ---: |" * (len(VARIANTS) + 1)
    for key, row in rows.items():
        default_bytes = row["peak_bytes"]["default"]
        cells = [f"{size / 2**20:,.0f}" for size in (row["predicted_peak_bytes"], default_bytes)]
        for name, column in columns.items():
            column.append(row["peak_bytes"][name] / default_bytes)
            cells.append(f"{column[-1]:.3f}")
        yield f"| {key} | {' | '.join(cells)} |"
    medians = (f"{median(column):.3f}" for column in columns.values())
    yield f"| median | | | {' | '.join(medians)} |"


def _plan(name: str, share: int | None, free: Row, seconds: float) -> kiwi.Plan:
    """Returns the plan under a share of the free plan's peak, or the nearest plan."""
    budget = None if share is None else share * int(free["peak_bytes"]["default"]) // 100
    model = MODELS[name]
    options = {"mesh_shape": (1, 1), "profile": "v5e", "verify": "tpu"}
    step = of_module(model.module, model.config)
    return step.nearest(budget, time_limit_seconds=seconds, **options)[0]


def _row(plan: kiwi.Plan) -> Row:
    execution = replace(plan.execution, tied_steps=frozenset[int](), arrangement=XLAS_OWN)
    step = replace(plan, execution=execution).step
    return {
        "predicted_peak_bytes": plan.estimate.peak_bytes,
        "recomputed_units": len(plan.execution.recomputed),
        "peak_bytes": {
            name: figures(step, {**TPU_CHECK_OPTIONS, **more})["peak_bytes"]
            for name, more in VARIANTS.items()
        },
    }
