"""What steps by hand that were measured on a GPU are predicted to take by today's prices.

    python -m benchmarks.device.repriced

Needs no GPU: the seconds are those of `results/device.json`. Steps as written that were too large
for the card stand beside their plan without a budget. Writes `results/repriced.md`.
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
    """Prices every model."""
    measured = json.loads(Path(_MEASURED.value).read_text())
    rows = [row for name in measured for row in _rows(name, measured[name]["rows"])]
    ratios = [predicted / seconds for _, _, seconds, predicted in rows]
    off = mean(abs(ratio - 1) for ratio in ratios)
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
        f"{max(ratios):.2f}, {100 * off:.1f} % off in the mean.",
    ]
    Path(_OUT.value).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def _rows(name: str, measured: list[dict[str, Any]]) -> Iterator[tuple[str, str, float, float]]:
    """Model, step, measured and predicted seconds."""
    seconds = {row["variant"]: row[_SECONDS] for row in measured if row.get(_SECONDS)}
    for key, remat in BY_HAND.items():
        found = seconds.get(key, seconds.get(FREE) if remat is None else None)
        if found is not None:
            estimate = estimate_by_hand(MODELS[name], remat, _PROFILE.value)
            yield name, key, found, estimate.step_seconds


if __name__ == "__main__":
    app.run(main)
