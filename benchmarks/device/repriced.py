"""The predicted times of hand-written steps by today's prices, beside their times on a GPU.

    python -m benchmarks.device.repriced

Needs no GPU: the measured seconds come from `results/device.json`. A step as written that was too
large for the card is represented by its plan without a budget. Writes `results/repriced.md`.
"""

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

from absl import app, flags

from benchmarks.device.models import BY_HAND, FREE, MODELS
from benchmarks.device.planning import estimate_by_hand
from benchmarks.provenance import commit

_MEASURED = flags.DEFINE_string("measured", "benchmarks/device/results/device.json", "What was.")
_OUT = flags.DEFINE_string("out", "benchmarks/device/results/repriced.md", "Where the table goes.")
_PROFILE = flags.DEFINE_string("profile", "h100-sxm", "The hardware that it was measured on.")

_SECONDS = "measured_median_seconds"


def main(_: list[str]) -> None:
    """Prices all models, and writes the table."""
    measured = json.loads(Path(_MEASURED.value).read_text())
    rows = [row for name in measured for row in _rows(name, measured[name]["rows"])]
    ratios = [predicted / seconds for _, _, seconds, predicted in rows]
    mean_error = mean(abs(ratio - 1) for ratio in ratios)
    lines = [
        f"# Predicted and measured seconds of steps by hand ({_PROFILE.value})",
        "",
        f"Written by `python -m benchmarks.device.repriced`, {datetime.date.today()}, {commit()}.",
        "",
        "| model | step | measured ms | predicted ms | predicted / measured |",
        "| --- | --- | ---: | ---: | ---: |",
        *(
            f"| {name} | {key} | {1e3 * seconds:.2f} | {1e3 * predicted:.2f} "
            f"| {predicted / seconds:.2f} |"
            for name, key, seconds, predicted in rows
        ),
        "",
        f"{len(rows)} steps: {median(ratios):.2f} in the median, {min(ratios):.2f} to "
        f"{max(ratios):.2f}, {100 * mean_error:.1f} % off in the mean.",
    ]
    Path(_OUT.value).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def _rows(name: str, measured: list[dict[str, Any]]) -> Iterator[tuple[str, str, float, float]]:
    """Yields model, step, measured seconds and predicted seconds."""
    seconds = {row["variant"]: row[_SECONDS] for row in measured if row.get(_SECONDS)}
    for key, remat in BY_HAND.items():
        measured_seconds = seconds.get(key, seconds.get(FREE) if remat is None else None)
        if measured_seconds is not None:
            estimate = estimate_by_hand(MODELS[name], remat, _PROFILE.value)
            yield name, key, measured_seconds, estimate.step_seconds


if __name__ == "__main__":
    app.run(main)
