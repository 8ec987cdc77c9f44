"""Counts the attempts of plans without a recorded count, and writes the table of all.

    python -m benchmarks.attempts --suites=goldens,planning_time,fidelity,field,asked

Each case is planned in a process of its own. Its rows are written to `--out` as soon as it ends, so
an interrupted run continues where it stopped.
"""

import datetime
import json
import os
import resource
import subprocess
import sys
from dataclasses import astuple
from importlib import metadata
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks.attempts.cases import SUITES, Case, cases
from benchmarks.attempts.table import markdown
from benchmarks.provenance import commit

_SUITES = flags.DEFINE_list("suites", list(SUITES), "Whose steps are planned.")
_PROFILES = flags.DEFINE_list("profiles", ["h100-sxm", "v5e"], "Hardware, besides the goldens'.")
_MOST = flags.DEFINE_integer("most_seconds", 600, "Of the processor, for one case.")
_OUT = flags.DEFINE_string("out", "benchmarks/attempts/results.json", ".md lies beside.")

Rows = dict[str, dict[str, Any]]


def main(_: list[str]) -> None:
    """Plans the missing cases, one after the other."""
    out = Path(_OUT.value)
    for case in cases(tuple(_SUITES.value), tuple(_PROFILES.value)):
        rows = _read(out)
        if any(key.startswith(f"{case.name} ") for key in rows):
            continue
        _write(out, rows | _counted(case))


def _counted(case: Case) -> Rows:
    """Returns the rows of a case. If its process ended before all budgets were planned, one row
    says "ended"."""
    most_seconds = _MOST.value
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks.attempts.one", json.dumps(astuple(case))],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "KIWI_PLAN_CACHE": "off"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_CPU, (most_seconds, most_seconds + 5)
        ),
    )
    rows: Rows = {}
    environment = {"commit": commit(), "jax": metadata.version("jax"), "date": _today()}
    for line in completed.stdout.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            rows[row.pop("key")] = {**row, **environment}
    if completed.returncode:
        last_line = (completed.stderr.strip().splitlines() or [""])[-1][:200]
        rows[f"{case.name} ended"] = {"outcome": f"ended: {last_line}", **environment}
    print(f"{case.name}: {', '.join(row['outcome'] for row in rows.values())}", flush=True)
    return rows


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _read(path: Path) -> Rows:
    return json.loads(path.read_text())["rows"] if path.exists() else {}


def _write(path: Path, rows: Rows) -> None:
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(rows[key])}" for key in sorted(rows))
    path.write_text(f'{{"rows": {{\n{lines}\n}}}}\n')
    path.with_suffix(".md").write_text(markdown(rows))


if __name__ == "__main__":
    app.run(main)
