"""Measures the missing rows; see `benchmarks.sampled`."""

import datetime
import json
import math
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from absl import app, flags

import kiwi
from benchmarks.sampled.report import markdown, picture
from benchmarks.sampled.rows import Asked, Key, Row, append_row, read_rows
from benchmarks.sampled.summary import errors

_SEED = flags.DEFINE_integer("seed", 20261129, "Of the models.")
_FIRST = flags.DEFINE_integer("first", 0, "Index of the first model.")
_MODELS = flags.DEFINE_integer("models", 20, "How many models.")
_PROFILES = flags.DEFINE_list("profiles", ["cpu", "h100-sxm", "v5e", "v5p"], "Hardware.")
_MESHES = flags.DEFINE_list("meshes", ["8", "2x4"], "Meshes, such as 8, 2x4 or 4x8.")
_VARIANTS = flags.DEFINE_list(
    "variants",
    ["free", "budget-80", "budget-60", "budget-45"],
    "Plans, and steps by hand such as fsdp/full (benchmarks.sampled.by_hand.VARIANTS).",
)
_EFFORT = flags.DEFINE_string("effort", "normal", "Of each search.")
_ROW_SECONDS = flags.DEFINE_integer(
    "row_seconds", 3600, "By the clock: a row that takes longer is given up, and says so."
)
_OUT = flags.DEFINE_string(
    "out", "benchmarks/sampled/results/rows.jsonl", "Rows; .md and .png lie beside."
)


def main(_: list[str]) -> None:
    """Measures the models one after another, each in a process of its own."""
    out = Path(_OUT.value)
    out.parent.mkdir(parents=True, exist_ok=True)
    requested = Asked(_PROFILES.value, _MESHES.value, _VARIANTS.value)
    indices = range(_FIRST.value, _FIRST.value + _MODELS.value)
    total = len(indices) * len(list(requested.keys(0, 0)))
    for index in indices:
        missing = [
            key for key in requested.keys(_SEED.value, index) if str(key) not in read_rows(out)
        ]
        while missing:
            _measure(out, missing)
            rows = read_rows(out)
            missing = [key for key in missing if str(key) not in rows]
        _print_progress(read_rows(out), _SEED.value, indices, requested, total)
        _write_reports(out)
    _write_reports(out)


def _measure(out: Path, keys: Sequence[Key]) -> None:
    """Measures keys in a process. If the process ends early, the first key without a row gets a row
    with the reason."""
    shapes = [math.prod(key.mesh_shape) for key in keys]
    task = {
        "path": str(out),
        "keys": [str(key) for key in keys],
        "devices": max(shapes),
        "effort": _EFFORT.value,
    }
    command = [sys.executable, "-m", "benchmarks.sampled.worker", json.dumps(task)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            _, printed = process.communicate(timeout=_ROW_SECONDS.value * len(keys))
            reason = f"The process ended with code {process.returncode}: {_last_line(printed)}"
        except subprocess.TimeoutExpired:
            process.kill()
            reason = f"It took longer than {_ROW_SECONDS.value} s a row."
    rows = read_rows(out)
    unmeasured = [key for key in keys if str(key) not in rows]
    if unmeasured:
        append_row(out, unmeasured[0], {"error": "ProcessEnded", "what": reason})


def _last_line(printed: str) -> str:
    lines = [line for line in printed.strip().splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it printed nothing"


def _print_progress(
    rows: dict[str, Row], seed: int, indices: range, asked: Asked, total: int
) -> None:
    done = [str(key) for index in indices for key in asked.keys(seed, index) if str(key) in rows]
    plans = {key: rows[key] for key in done}
    peaks = errors(plans, "peak")
    worst = max(peaks.items(), key=lambda pair: abs(pair[1]), default=("none", 0.0))
    failed = sum("error" in row for row in plans.values())
    print(
        f"{len(done)} of {total} rows, {failed} without a plan; worst peak {worst[1]:+.0%} "
        f"({worst[0]}); {sum(row.get('cpu_seconds', 0) for row in plans.values()):.0f} CPU s",
        flush=True,
    )


def _write_reports(out: Path) -> None:
    rows = read_rows(out)
    if rows:
        out.with_suffix(".md").write_text(markdown(_environment(rows), rows))
        picture(rows, out.with_suffix(".png"))


def _environment(rows: dict[str, Row]) -> dict[str, str]:
    commits = sorted({str(row["commit"]) for row in rows.values() if "commit" in row})
    return {
        "date": datetime.date.today().isoformat(),
        "command": "python -m benchmarks.sampled",
        "effort": _EFFORT.value,
        "kiwi": f"{kiwi.__version__} ({', '.join(commits)})",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("jax", "libtpu", "flax", "equinox", "optax")},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    app.run(main)
