"""The results as a page: the cost of barriers by model, compiler and budget."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]

_MEASURES = ("kernels", "traffic_bytes", "cycles")
_TITLES = {"cuda": "H100 (XLA:GPU)", "tpu": "v5e (XLA:TPU)"}


def report(folder: Path) -> str:
    """Returns the rows of a folder as Markdown."""
    rows = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    lines = ["# What barriers cost", "", "Written by `python -m benchmarks.emission`.", ""]
    for compiler, title in _TITLES.items():
        free = {_model(k, compiler): r for k, r in rows.items() if k.endswith(f"_{compiler}_free")}
        lines += [f"## {title}", "", *_free(free), "", *_budgets(rows, free, compiler), ""]
    return "\n".join(lines)


def _model(stem: str, compiler: str) -> str:
    return stem.split(f"_{compiler}_")[0]


def _free(rows: dict[str, Row]) -> Iterator[str]:
    """Yields the table of plans without a budget, over the same plans without barriers and over
    `jax.jit`."""
    yield "Without a budget: planned / without any barrier, planned / `jax.jit`."
    yield ""
    yield "| model | kernels | traffic | cycles | kernels | traffic | cycles | temporaries |"
    yield "| --- |" + " ---: |" * 7
    columns: list[list[float]] = [[] for _ in range(7)]
    for model, row in rows.items():
        ratios = [_ratio(row, "no_barrier", m) for m in _MEASURES]
        ratios += [_ratio(row, "plain", m) for m in (*_MEASURES, "temporary_bytes")]
        for column, ratio in zip(columns, ratios, strict=True):
            column += [] if ratio is None else [ratio]
        yield f"| {model} | " + " | ".join(map(_shown, ratios)) + " |"
    medians = [median(column) if column else None for column in columns]
    yield "| median | " + " | ".join(map(_shown, medians)) + " |"


def _budgets(rows: dict[str, Row], free: dict[str, Row], compiler: str) -> Iterator[str]:
    """Yields the table of the cost of a budget, relative to the cost of the recomputed
    operators."""
    yield "Under budgets (% of the free compiled peak): traffic over the free plan's; what is more"
    yield "than there, and than of the same shardings without any barrier (nothing is recomputed"
    yield "then), over what recomputed operators take, and conversions of operands that are brought"
    yield "into a layout again; cycles beyond the free plan's over those of what is recomputed;"
    yield "peaks with the plan's barriers and with one at every step, of programs that wait for"
    yield "collectives, as all of these are; whether the plan fits, in its own way."
    yield ""
    yield (
        "| model | % | recomputed | tied steps | traffic | more / recomputed "
        "| more than without barriers | more cycles | kernels | peak MiB | every step | fits |"
    )
    yield "| --- |" + " ---: |" * 11
    for stem, row in rows.items():
        model, share = _model(stem, compiler), stem.rsplit("_", 1)[1]
        if f"_{compiler}_" not in stem or share == "free" or model not in free:
            continue
        if "planned" not in row or "planned" not in free[model]:
            yield f"| {model} | {share} | {row.get('error')} |"
            continue
        yield f"| {model} | {share} | " + " | ".join(_budget(row, free[model])) + " |"


def _budget(row: Row, free: Row) -> Iterator[str]:
    new, old = row["planned"], free["planned"]
    recomputed_bytes = new["recomputed_traffic_bytes"]
    yield str(row["recomputed_units"])
    yield "all" if row["tied_steps"] is None else str(row["tied_steps"])
    yield _shown(new["traffic_bytes"] / old["traffic_bytes"])
    for other in (old, row.get("no_barrier", {})):
        is_known = recomputed_bytes and "traffic_bytes" in other
        yield (
            _shown((new["traffic_bytes"] - other["traffic_bytes"]) / recomputed_bytes)
            if is_known
            else "–"
        )
    are_known = new.get("recomputed_cycles") and old.get("cycles")
    yield _shown((new["cycles"] - old["cycles"]) / new["recomputed_cycles"]) if are_known else "–"
    yield _shown(new["kernels"] / old["kernels"])
    yield f"{new['peak_bytes'] / 2**20:.0f}"
    yield f"{row['every_step'].get('peak_bytes', 0) / 2**20:.0f}"
    yield "yes" if row["fits"] else "no"


def _ratio(row: Row, other: str, measure: str) -> float | None:
    ours, theirs = row.get("planned", {}).get(measure), row.get(other, {}).get(measure)
    return ours / theirs if ours and theirs else None


def _shown(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.3f}"
