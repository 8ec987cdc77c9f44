"""The measurements of `benchmarks.device` as a table: `python -m benchmarks.device.report`.

The table is written beside the JSON file, with the ending `.md`.
"""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from scipy.stats import spearmanr

from benchmarks.device.models import AT_PEAK_OF, BY_HAND, FREE, TRACED

_PATH = flags.DEFINE_string("results", "benchmarks/device/results/device.json", "What to read.")

Row = Mapping[str, Any]

_COLUMNS = (
    *("model", "variant", "budget MiB", "predicted", "checked", "on the device"),
    *("predicted ms", "compiled ms", "measured ms"),
)

_LEAST_ROWS = 4
"""Models with fewer measured variants have no rank correlation."""


def main(_: list[str]) -> None:
    """Writes the table."""
    path = Path(_PATH.value)
    path.with_suffix(".md").write_text("\n".join(report(json.loads(path.read_text()))) + "\n")


def report(models: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of the page."""
    known = [model["environment"] for model in models.values()]
    yield "# Plans and `jax.checkpoint`, measured"
    yield ""
    for name in ("command", "device", "date", "commit", "jax", "kiwi"):
        yield f"{name}: {', '.join(sorted({str(known_row[name]) for known_row in known}))}  "
    yield ""
    yield from summary(models)
    yield ""
    yield f"| {' | '.join(_COLUMNS)} |"
    yield f"| {' | '.join(['---'] * 2 + ['---:'] * (len(_COLUMNS) - 2))} |"
    for name, model in models.items():
        for row in model["rows"]:
            yield f"| {' | '.join((name, *_cells(row)))} |"


def summary(models: Mapping[str, Any]) -> Iterator[str]:
    """Yields the sentences above the table."""
    rows = [row for model in models.values() for row in model["rows"] if _is_measured(row)]
    rows = [row for row in rows if row["variant"] != TRACED]
    planned = [row for row in rows if row["variant"] not in BY_HAND]
    same = sum(row["compiled_peak_bytes"] == row["check_peak_bytes"] for row in planned)
    near = [row for row in rows if _is_allocated(row)]
    yield (
        f"Of {len(planned)} planned programs {same} take on the device what the check without a "
        "device had said, to the byte."
    )
    yield (
        f"The allocator's peak is within 0.5 % of the program's in {len(near)} of {len(rows)} "
        "rows; in the others the process had taken more for tuning kernels while it compiled."
    )
    yield f"Compiled over measured seconds: {_spread(rows, 'simulated_step_seconds')}."
    yield f"Predicted over measured seconds of plans: {_spread(planned, 'predicted_step_seconds')}."
    orders = sorted(_rank_correlations(models))
    if orders:
        yield (
            "Rank correlation of a model's predicted and measured seconds: "
            f"{statistics.median(orders):.2f} in the median of {len(orders)} models "
            f"({orders[0]:.2f} to {orders[-1]:.2f})."
        )
    pairs = {FREE: "as written", **AT_PEAK_OF}
    for planned_as, hand in pairs.items():
        tables = [_seconds(model["rows"]) for model in models.values()]
        ratios = [t[planned_as] / t[hand] for t in tables if planned_as in t and hand in t]
        if ratios:
            yield (
                f"{planned_as[0].upper()}{planned_as[1:]} over {hand}, measured: "
                f"{statistics.median(ratios):.2f} in the median of {len(ratios)} models "
                f"({min(ratios):.2f} to {max(ratios):.2f})."
            )


def _is_measured(row: Row) -> bool:
    return row.get("measured_median_seconds") is not None


def _is_allocated(row: Row) -> bool:
    return row["measured_peak_bytes"] <= 1.005 * row["compiled_peak_bytes"]


def _spread(rows: Sequence[Row], key: str) -> str:
    ratios = sorted(row[key] / row["measured_median_seconds"] for row in rows)
    return f"{statistics.median(ratios):.2f} in the median, {ratios[0]:.2f} to {ratios[-1]:.2f}"


def _rank_correlations(models: Mapping[str, Any]) -> Iterator[float]:
    """Yields the correlation of each model with at least `_LEAST_ROWS` measured variants."""
    for model in models.values():
        rows = [row for row in model["rows"] if _is_measured(row) and row["variant"] != TRACED]
        if len(rows) >= _LEAST_ROWS:
            predicted = [row["predicted_step_seconds"] for row in rows]
            measured = [row["measured_median_seconds"] for row in rows]
            yield float(spearmanr(predicted, measured).statistic)


def _seconds(rows: Sequence[Row]) -> dict[str, float]:
    return {row["variant"]: row["measured_median_seconds"] for row in rows if _is_measured(row)}


def _cells(row: Row) -> Iterator[str]:
    yield row["variant"]
    peaks = ("budget_bytes", "predicted_peak_bytes", "check_peak_bytes", "compiled_peak_bytes")
    for key in peaks:
        yield f"{row[key] / 2**20:.0f}" if row.get(key) else ""
    for key in ("predicted_step_seconds", "simulated_step_seconds", "measured_median_seconds"):
        yield f"{1e3 * row[key]:.1f}" if row.get(key) else row.get("error", "").split(":")[0]


if __name__ == "__main__":
    app.run(main)
