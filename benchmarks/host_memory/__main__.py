"""Measures the missing rows; see `benchmarks.host_memory`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags

from benchmarks.host_memory.models import MODELS
from benchmarks.tpu.book import Book, Row
from benchmarks.tpu.programs import TrainingStep
from kiwi.errors import BudgetNotMetError, KiwiError

SHARES = (70, 50, 35)
DEVICES_PER_HOST = 8
"""The number of devices of a host: all of a (2, 4) mesh."""
TARGETS: Mapping[str, Mapping[str, Any]] = {
    "v5e": {"mesh_shape": (2, 4), "profile": "v5e", "verify": "tpu"},
    "v5p": {"mesh_shape": (2, 4), "profile": "v5p", "verify": "tpu"},
    "h100-sxm": {"mesh_shape": (2, 4), "profile": "h100-sxm", "verify": "cuda"},
}
HOST_BUDGET = "256GiB"

PAIRED = ("mlp-scanned", "mlp-unrolled", "llama-scanned", "vit")
"""The models for which random pairs of budgets are drawn, on v5e."""

_NAMES = flags.DEFINE_list("models", list(MODELS), "Which ones.")
_TARGETS = flags.DEFINE_list("targets", list(TARGETS), "Profiles, each by its own compiler.")
_PAIRS = flags.DEFINE_integer("pairs", 0, "So many random pairs of budgets, instead of shares.")
_EFFORT = flags.DEFINE_string("effort", "quick", "Of each search.")
_REDO = flags.DEFINE_list("redo", [], "Beginnings of keys of rows that are measured again.")
_FOLDER = flags.DEFINE_string("out", "benchmarks/host_memory", "Where rows and tables are.")


def main(_: list[str]) -> None:
    """Measures the missing rows, and writes the tables."""
    jax.config.update("jax_platforms", "cpu")
    rows_by_share = Measured("host_memory")
    if _PAIRS.value:
        rows_of_pairs = Measured("pairs")
        for number in range(_PAIRS.value):
            pair(number, rows_by_share, rows_of_pairs)
        rows_of_pairs.book.write_table("Random pairs of budgets", table(rows_of_pairs.book.rows))
    else:
        for target in _TARGETS.value:
            for name in _NAMES.value:
                budgets(name, target, rows_by_share)
    rows_by_share.book.write_table(
        "Plans with and without the host's memory", table(rows_by_share.book.rows)
    )


class Measured:
    """The rows of one file."""

    def __init__(self, name: str) -> None:
        path = Path(_FOLDER.value) / f"{name}.json"
        self.book = Book(path, tuple(_REDO.value), "benchmarks.host_memory")

    def row(self, key: str, name: str, target: str, **asked: Any) -> Row:
        """Returns the row of a model's plan for a target, under the budgets in `asked`. Plans only
        if the row is missing."""
        return self.book.row(key, lambda: _row(MODELS[name](), **TARGETS[target], **asked))


def budgets(name: str, target: str, shares: Measured) -> None:
    """Measures a model at each share of its free peak, with and without host memory. If the budget
    is not met with host memory, arguments are offloaded too."""
    beginning = f"{name} {target}"
    free = shares.row(f"{beginning} free", name, target)
    for share in SHARES:
        budget = share * free["compiled_bytes"] // 100
        for host in (None, HOST_BUDGET):
            limits = {"memory_budget": budget, "host_memory_budget": host}
            key = f"{beginning} {share}%{' with host' if host else ''}"
            row = shares.row(key, name, target, **limits)
            if host and "refused_bytes" in row:
                key = f"{beginning} {share}% with arguments there, too"
                shares.row(key, name, target, **limits, offload_arguments=True)


def pair(number: int, shares: Measured, pairs: Measured) -> None:
    """Measures a random pair of budgets: 30 to 90 % of the free peak on a device, and 3 to 60 % of
    the free peak of all devices of a host on the host."""
    generator = np.random.default_rng(number)
    name, target = PAIRED[generator.integers(len(PAIRED))], "v5e"
    free = shares.row(f"{name} {target} free", name, target)["compiled_bytes"]
    limits = {
        "memory_budget": int(generator.uniform(0.3, 0.9) * free),
        "host_memory_budget": int(generator.uniform(0.03, 0.6) * free * DEVICES_PER_HOST),
    }
    pairs.row(f"{number} {name}", name, target, **limits)


def _row(step: TrainingStep, **asked: Any) -> Row:
    try:
        plan = step.plan(effort=_EFFORT.value, **asked)
    except BudgetNotMetError as error:
        return {"refused_bytes": error.least_peak_bytes}
    except KiwiError as error:
        return {"refused_bytes": getattr(error, "least_peak_bytes", None)}
    assert plan.compiled is not None
    return {
        "budget_bytes": plan.memory_budget_bytes,
        "host_budget_bytes": plan.host_limit_bytes,
        "step_seconds": plan.estimate.step_seconds,
        "compiled_seconds": plan.compiled.step_seconds,
        "estimated_bytes": plan.estimate.peak_bytes,
        "compiled_bytes": plan.compiled.peak_bytes,
        "host_estimated_bytes": plan.estimate.host_peak_bytes,
        "host_compiled_bytes": plan.compiled.host_peak_bytes,
        "recompute_seconds": plan.estimate.recompute_seconds,
        "offload_seconds": plan.estimate.offload_seconds,
        **{f"{name}_operators": count for name, count in plan.residency_counts().items()},
    }


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yields the lines of the table, with one row for each plan."""
    yield (
        "| plan | budget MiB | compiled | estimated | on the host, compiled | estimated | step ms "
        "| recomputed | offloaded |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for key, row in rows.items():
        if "refused_bytes" in row:
            least = row["refused_bytes"]
            known = "" if least is None else f"least found {least / 2**20:.0f}"
            yield f"| {key} | refused | {known} | | | | | | |"
            continue
        sizes = ("budget", "compiled", "estimated", "host_compiled", "host_estimated")
        cells = [f"{row[f'{name}_bytes'] / 2**20:.0f}" for name in sizes]
        counts = [row.get(f"{name}_operators", 0) for name in ("recompute", "offload")]
        step = f"{row['step_seconds'] * 1e3:.1f}"
        yield f"| {key} | {' | '.join(cells)} | {step} | {counts[0]} | {counts[1]} |"


if __name__ == "__main__":
    app.run(main)
