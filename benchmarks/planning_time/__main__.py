"""Processor seconds of planning, beside the seconds of XLA's own compilation of the plain step.

    python -m benchmarks.planning_time --programs=mlp_adamw,dit --layers=8,32 --budgets=free,0.6

Each row is planned in a process of its own on a (2, 4) mesh of H100s, without a cache of plans, in
at most `--most_seconds` processor seconds. A row that takes longer says "over". The seconds include
the processes that compile for the row. A budget of 0.6 is that share of the free plan's peak. XLA
compiles the plain step with the plan's shardings of arguments and results for the same target, to
the same stage as Kiwi's check: without such a device to the assignment of buffers.

Rows are stored in `--out` by program, layers, budget and `--label`, and are not measured again. The
table beside it is rewritten after each row. `--label` distinguishes versions of Kiwi.
"""

import datetime
import json
import os
import platform
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks.planning_time.programs import PROGRAMS
from benchmarks.planning_time.table import markdown
from benchmarks.provenance import commit

_PROGRAMS = flags.DEFINE_list("programs", list(PROGRAMS), "Programs of this folder.")
_LAYERS = flags.DEFINE_list("layers", ["8"], "Numbers of layers.")
_BUDGETS = flags.DEFINE_list("budgets", ["free", "0.6"], '"free", or parts of the free peak.')
_LABEL = flags.DEFINE_string("label", "", "What the version of Kiwi is called; by default so.")
_MOST = flags.DEFINE_integer("most_seconds", 300, "Of the processor, for one row.")
_OUT = flags.DEFINE_string("out", "benchmarks/planning_time/results.json", ".md lies beside.")

FREE = "free"


def main(_: list[str]) -> None:
    """Measures the missing rows."""
    out = Path(_OUT.value)
    rows: dict[str, Any] = json.loads(out.read_text())["rows"] if out.exists() else {}
    label = _LABEL.value or metadata.version("kiwi-planner")
    for name in _PROGRAMS.value:
        for layers in map(int, _LAYERS.value):
            for budget in sorted(_BUDGETS.value, key=lambda text: text != FREE):
                key = f"{name} {layers} {budget} {label}"
                free = rows.get(f"{name} {layers} {FREE} {label}", {}).get("peak_bytes")
                if key in rows or (budget != FREE and free is None):
                    continue
                budget_bytes = None if budget == FREE else int(float(budget) * free)
                rows[key] = {
                    "program": name,
                    "layers": layers,
                    "budget": budget,
                    "label": label,
                    **_planned(name, layers, budget_bytes),
                    **_environment(),
                }
                print(key, rows[key], flush=True)
                command = "python -m benchmarks.planning_time"
                out.write_text(json.dumps({"command": command, "rows": rows}, indent=1) + "\n")
                out.with_suffix(".md").write_text(markdown(rows.values(), command))


def _planned(name: str, layers: int, budget_bytes: int | None) -> dict[str, Any]:
    """Returns the row of a plan that a process of its own makes."""
    request = json.dumps({"program": name, "layers": layers, "budget_bytes": budget_bytes})
    most_seconds = _MOST.value
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "KIWI_PLAN_CACHE": "off"}
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks.planning_time.one", request],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_CPU, (most_seconds, most_seconds + 5)
        ),
    )
    lines = completed.stdout.strip().splitlines()
    if completed.returncode == 0 and lines:
        return json.loads(lines[-1])
    if completed.returncode < 0:  # The limit of processor time ends the process by a signal.
        return {"over_seconds": most_seconds}
    return {"error": completed.stderr.strip().splitlines()[-1][:200]}


def _environment() -> dict[str, Any]:
    return {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "jax": metadata.version("jax"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    app.run(main)
