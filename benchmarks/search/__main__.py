"""Runs searches and writes what they found to `results/`.

    python -m benchmarks.search                      # all of them
    python -m benchmarks.search gpt-8 llama-32 ...   # some
    python -m benchmarks.search exhaustive           # one small space, planned in full as well
    JOBS=1 python -m benchmarks.search               # in so many processes, 2 by default

Estimates, not compiled. A search that was interrupted goes on where it was.
"""

import json
import os
import platform
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

import kiwi
from kiwi.configurations.configuration import State
from kiwi.configurations.result import SearchResult
from kiwi.mesh import CATALOGUE

RESULTS = Path(__file__).parent / "results"
GPT = "examples/gpt_13b_4l.py:make_step"
LLAMA = "examples/llama.py:make_step"
V100 = replace(CATALOGUE["v100-sxm2"], name="v100-nodes-of-8", devices_per_node=8)
"""The paper's network: 32 Gbit/s of Ethernet for each node of eight."""
JOBS = int(os.environ.get("JOBS", "2"))


def space(name: str) -> tuple[str, dict[str, Any]]:
    """The step and what is searched."""
    model, _, rest = name.partition("-")
    count, _, profile = rest.partition("-")
    devices = int(count)
    known = {"": "h100-sxm", "v100": V100, "v5e": "v5e"}
    common = {"devices": devices, "profile": known[profile], "donate_argnums": 0}
    common |= {"most_axes": 2}  # those of three take several times as long
    if model == "gpt":
        return GPT, {**common, "batch_sizes": (2 * devices, 8 * devices)}
    numbers = {"microbatches": (1, 4), "stages": (1, 4)}
    return LLAMA, {**common, "batch_sizes": (4 * devices,), **numbers}


NAMES = [
    f"{model}-{devices}{profile}"
    for model in ("gpt", "llama")
    for devices in (8, 32, 256)
    for profile in ("", "-v100", "-v5e")
]


def searched(name: str, **more: Any) -> SearchResult:
    """One search, without compiling."""
    step, options = space(name)
    folder = Path(tempfile.gettempdir()) / f"kiwi-search-{name}{'-all' * bool(more)}"
    return kiwi.search(step, verify=None, jobs=JOBS, resume=folder, **options, **more)


def main(names: list[str]) -> None:
    """Runs searches by name."""
    RESULTS.mkdir(exist_ok=True)
    for name in names or [*NAMES, "exhaustive"]:
        if name == "exhaustive":
            _compare()
            continue
        found = searched(name)
        print(f"{name}\n{found}\n", flush=True)
        _write(name, found)


def _compare() -> None:
    """The same space with bounds and in full."""
    bounded, full = searched("gpt-8"), searched("gpt-8", plans_all=True)
    figures = {
        "same": bounded.choice == full.choice,
        "choice": bounded.choice,
        "choice_in_full": full.choice,
        "planned": _planned(bounded),
        "planned_in_full": _planned(full),
    }
    print(json.dumps(figures, indent=1))
    (RESULTS / "exhaustive.json").write_text(json.dumps(figures, indent=1) + "\n")


def _planned(found: SearchResult) -> int:
    return sum(row.step_seconds is not None for row in found.rows)


def _write(name: str, found: SearchResult) -> None:
    data = {
        "name": name,
        "jax": jax.__version__,
        "python": platform.python_version(),
        **_without_seconds(found.json()),
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (RESULTS / "README.md").write_text(_markdown())


def _without_seconds(data: dict[str, Any]) -> dict[str, Any]:
    """Wall times say more of the machine than of the search."""
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in data["rows"]]
    return {**data, "rows": rows, "seconds": None}


def _markdown() -> str:
    lines = [
        "# The best configuration, searched",
        "",
        "By `python -m benchmarks.search`: meshes of one and two axes; estimates, not compiled.",
        "",
        "| search | rows | planned | left out | refused | best | samples/s | step ms | peak GiB | "
        "gap |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in NAMES:
        path = RESULTS / f"{name}.json"
        if path.exists():
            lines.append(_line(name, json.loads(path.read_text())))
    return "\n".join(lines) + "\n"


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
    cells = [name, *map(str, counts), *figures]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main(sys.argv[1:])
