"""Calls a step alternately under `jax.jit` and under a plan, and compares the times of pairs.

python -m benchmarks.dispatch

The step adds a number to every leaf of its state, so its time is almost only the overhead of the
call. Both functions start from arrays with the shardings that they want, and feed their results to
the next call. Writes `results.json` and `results.md` into this folder.
"""

import datetime
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

import kiwi

_PAIRS = flags.DEFINE_integer("pairs", 60, "Pairs of runs.")
_CALLS = flags.DEFINE_integer("calls", 5, "Calls of a run.")
_LEAVES = flags.DEFINE_list("leaves", ["4", "40", "400", "2000"], "Leaves of the state.")
_DEVICES = flags.DEFINE_list("devices", ["1", "8"], "Devices.")
_FOLDER = Path(__file__).parent


def main(_: list[str]) -> None:
    """Measures all sizes, and writes the results."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", max(map(int, _DEVICES.value)))
    sizes = [(int(d), int(n)) for d in _DEVICES.value for n in _LEAVES.value]
    rows = [_row(*size) for size in sizes]
    text = _report(rows)
    results = {"rows": rows, "environment": _environment()}
    (_FOLDER / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (_FOLDER / "results.md").write_text(text)
    print(text)


def _step(state: Any, x: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: leaf + x, state)


def _row(devices: int, leaves: int) -> dict[str, Any]:
    state = {f"w{k}": jnp.ones((8,)) for k in range(leaves)}
    planned = kiwi.jit(_step, mesh_shape=(devices,), verify=None)
    x = jnp.ones(())
    placed = planned.plan(state, x).place(state, x)
    shardings = {k: leaf.sharding for k, leaf in placed[0].items()}
    plain = jax.jit(_step, in_shardings=(shardings, placed[1].sharding), out_shardings=shardings)
    pairs = _pairs(plain, planned, *placed)
    ratios = sorted(second / first for first, second in pairs)
    return {
        "devices": devices,
        "leaves": leaves,
        "jit_seconds": statistics.median(first for first, _ in pairs),
        "planned_seconds": statistics.median(second for _, second in pairs),
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
    }


def _pairs(plain: Any, planned: Any, state: Any, x: jax.Array) -> list[tuple[float, float]]:
    """Returns pairs of seconds per call, of `plain` and `planned`. The two run one after the other,
    and the order alternates."""
    states = [plain(state, x), planned(state, x)]
    pairs = []
    for pair in range(_PAIRS.value):
        seconds = [0.0, 0.0]
        for k in (0, 1) if pair % 2 else (1, 0):
            seconds[k], states[k] = _run((plain, planned)[k], states[k], x)
        pairs.append((seconds[0], seconds[1]))
    return pairs


def _run(step: Callable[..., Any], state: Any, x: jax.Array) -> tuple[float, Any]:
    started = time.perf_counter()
    for _ in range(_CALLS.value):
        state = step(state, x)
    jax.block_until_ready(state)
    return (time.perf_counter() - started) / _CALLS.value, state


def _environment() -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "processor_count": os.cpu_count(),
    }


def _report(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# A planned call beside one of `jax.jit`",
        "",
        f"`python -m benchmarks.dispatch`: medians of {_PAIRS.value} pairs of {_CALLS.value} "
        f"calls, {', '.join(f'{k} {v}' for k, v in _environment().items())}.",
        "",
        "| devices | leaves | `jax.jit`, ms | planned, ms | ratio | quartiles |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        low, high = row["ratio_quartiles"]
        lines.append(
            f"| {row['devices']} | {row['leaves']} | {1e3 * row['jit_seconds']:.3f} | "
            f"{1e3 * row['planned_seconds']:.3f} | {row['ratio']:.2f} | {low:.2f} to {high:.2f} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    app.run(main)
