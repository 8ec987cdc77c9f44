"""Runs the benchmark; see `benchmarks.replay`."""

import datetime
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from math import prod
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.replay.measure import replay
from benchmarks.replay.models import MODELS
from benchmarks.replay.report import markdown, plot
from benchmarks.replay.summary import orders, rows

_MODELS = flags.DEFINE_list("models", list(MODELS), "Models of benchmarks.replay.models.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "How often recording and running take turns.")
_RUNS = flags.DEFINE_integer("runs", 4, "Steps of each plan, before and after each recording.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 3, "Of each recorded program, per round.")
_CORES = flags.DEFINE_integer(
    "cores", 1, "CPU cores to run on: on a busy machine threads of one program wait for each other."
)
_OUT = flags.DEFINE_string(
    "out", "benchmarks/replay/results/replay.json", "Results; .md and .png lie beside."
)

ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Settings by which the C library keeps freed memory, like the allocators of accelerators.
Otherwise every step would get new pages, whose first access takes longer than a cache miss."""


def main(arguments: list[str]) -> None:
    """Measures the models one after another, and writes the results after each, in the order of
    `MODELS`."""
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        command = [sys.executable, "-m", "benchmarks.replay", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **ALLOCATOR})
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-_CORES.value :])
    by_devices: dict[int, list[str]] = {}
    for name in _MODELS.value:
        by_devices.setdefault(prod(MODELS[name].mesh_shape), []).append(name)
    if len(by_devices) > 1:
        # JAX has as many threads as devices, and would cut one device's kernels for all threads.
        for names in by_devices.values():
            command = [sys.executable, "-m", "benchmarks.replay", *sys.argv[1:]]
            subprocess.run([*command, f"--models={','.join(names)}"], check=True)
        return
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", *by_devices)
    out = Path(_OUT.value)
    out.parent.mkdir(parents=True, exist_ok=True)
    all_rows = _others(out)
    for name in _MODELS.value:
        model = MODELS[name]
        outcome = replay(
            model, rounds=_ROUNDS.value, runs=_RUNS.value, repetitions=_REPETITIONS.value
        )
        model_rows = rows(name, model.mesh_shape, outcome)
        for row in model_rows:
            print(f"{row['model']}, {row['plan']}: {row['ratio']:.2f}", flush=True)
        all_rows = sorted(all_rows + model_rows, key=lambda row: list(MODELS).index(row["model"]))
        results = {"environment": _environment(), "spearman": orders(all_rows), "rows": all_rows}
        out.write_text(json.dumps(results, indent=1) + "\n")
        out.with_suffix(".md").write_text(markdown(results))
        plot(all_rows, out.with_suffix(".png"))
    print(f"order, predicted against measured (Spearman): {orders(all_rows)}")


def _others(out: Path) -> list[dict[str, Any]]:
    """Returns the recorded rows of models that are not measured now."""
    recorded = json.loads(out.read_text())["rows"] if out.exists() else []
    return [row for row in recorded if row["model"] not in _MODELS.value]


def _environment() -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "command": "python -m benchmarks.replay",
        "kiwi": kiwi.__version__,
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "python": platform.python_version(),
        "cores": _CORES.value,
        "rounds": _ROUNDS.value,
        "runs": _RUNS.value,
        "repetitions": _REPETITIONS.value,
    }


if __name__ == "__main__":
    app.run(main)
