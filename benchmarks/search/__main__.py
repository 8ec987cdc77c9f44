"""Runs searches, and writes the results to `results/`; see `benchmarks.search`."""

import datetime
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks.provenance import commit
from benchmarks.search.spaces import JOBS, NAMES, searched
from kiwi.configurations.configuration import State
from kiwi.configurations.result import SearchResult

RESULTS = Path(__file__).parent / "results"
EXHAUSTIVE = ("gpt-8", "llama-8")


def main(names: list[str]) -> None:
    """Runs the named searches, or all of them."""
    RESULTS.mkdir(exist_ok=True)
    for name in names or [*NAMES, "exhaustive"]:
        if name == "exhaustive":
            _compare()
        else:
            found = searched(name)
            print(f"{name}\n{found}\n", flush=True)
            _write(name, {"name": name, **_environment(), **found.json()})
    (RESULTS / "README.md").write_text("\n".join(_markdown()) + "\n")


def _compare() -> None:
    """Searches the same spaces with bounds and in full."""
    rows = {}
    for name in EXHAUSTIVE:
        bounded, full = searched(name), searched(name, plans_all=True)
        rows[name] = {
            "same": bounded.choice == full.choice,
            "choice": bounded.choice,
            "choice_in_full": full.choice,
            "planned": _planned(bounded),
            "planned_in_full": _planned(full),
            "seconds": bounded.seconds,
            "seconds_in_full": full.seconds,
            "below_bound": max(_below_bound(full), default=0.0),
        }
        print(json.dumps(rows[name], indent=1), flush=True)
    _write("exhaustive", {**_environment(), "spaces": rows})


def _planned(found: SearchResult) -> int:
    return sum(row.step_seconds is not None for row in found.rows)


def _below_bound(found: SearchResult) -> Iterator[float]:
    """Yields the share by which each plan is faster than its bound. A bound is not a proof."""
    for row in found.rows:
        if row.step_seconds and row.bound_seconds:
            yield 1 - row.step_seconds / row.bound_seconds


def _environment() -> dict[str, Any]:
    return {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "jobs": JOBS,
        "cores": os.cpu_count(),
    }


def _write(name: str, data: Mapping[str, Any]) -> None:
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


def _markdown() -> Iterator[str]:
    yield from (
        "# The best configuration, searched",
        "",
        "By `python -m benchmarks.search`: meshes of one and two axes; estimates, not compiled. "
        "Seconds of the search are of a machine with two cores, in two processes.",
        "",
        "| search | rows | planned | left out | refused | best | samples/s | step ms | peak GiB | "
        "gap | search s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    )
    for name in NAMES:
        path = RESULTS / f"{name}.json"
        if path.exists():
            yield _line(name, json.loads(path.read_text()))
    path = RESULTS / "exhaustive.json"
    if path.exists():
        yield ""
        for name, row in json.loads(path.read_text())["spaces"].items():
            yield (
                f"{name} planned in full, {row['planned_in_full']} plans instead of "
                f"{row['planned']}: {'the same winner' if row['same'] else 'another winner'}."
            )


def _line(name: str, data: dict[str, Any]) -> str:
    rows = data["rows"]
    count = {state.value: sum(row["state"] == state.value for row in rows) for state in State}
    counts = len(rows), count["best"] + count["planned"], count["left out"], count["refused"]
    best = next((row for row in rows if row["state"] == State.BEST.value), None)
    if best is None:
        figures = ["none", "", "", "", ""]
    else:
        chosen = {k: v for k, v in best["configuration"].items() if k != "profile" and v}
        chosen["mesh_shape"] = "x".join(map(str, chosen["mesh_shape"]))
        figures = [
            ", ".join(f"{key} {value}" for key, value in chosen.items()),
            f"{best['samples_per_second']:.4g}",
            f"{1e3 * best['step_seconds']:.4g}",
            f"{best['peak_bytes'] / 2**30:.2f}",
            "" if best["gap"] is None else f"{best['gap']:.1%}",
        ]
    cells = [name, *map(str, counts), *figures, f"{data['seconds']:.0f}"]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main(sys.argv[1:])
