"""Measures the missing rows.

    python -m benchmarks.field --profiles=h100-sxm,v5e,numbers --budgets=free,60

Each row is measured in a process of its own and written to `--out` before the next one starts, so
an interrupted run continues where it stopped. The profile "numbers" is no hardware: it runs the
small copy on 8 CPU devices, beside `jax.jit`. `--again` measures the rows of programs anew, and
`--failed` the rows that failed. Programs for H100s are compiled where the CUDA plugin is installed,
programs for TPUs where libtpu is.
"""

import datetime
import json
import os
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks.field.programs import PROGRAMS
from benchmarks.field.rows import FREE, Key, Row, read_rows, write_rows
from benchmarks.field.table import markdown, outcome
from benchmarks.provenance import commit

_PROGRAMS = flags.DEFINE_list("programs", [], "Programs of this folder; all of them by default.")
_PROFILES = flags.DEFINE_list("profiles", ["h100-sxm", "v5e", "numbers"], "Hardware, or numbers.")
_BUDGETS = flags.DEFINE_list("budgets", [FREE, "60"], '"free", or percents of the free peak.')
_MOST = flags.DEFINE_integer("most_seconds", 600, "Of the processor, for one row.")
_AGAIN = flags.DEFINE_bool("again", False, "Measures what is on record as well.")
_FAILED = flags.DEFINE_bool("failed", False, "Measures again what failed.")
_OUT = flags.DEFINE_string("out", "benchmarks/field/results.json", ".md lies beside.")

COMMAND = "python -m benchmarks.field"


def main(_: list[str]) -> None:
    """Measures the missing rows one after the other."""
    out = Path(_OUT.value)
    keys = [
        Key(name, profile, budget)
        for profile in _PROFILES.value
        for budget in _BUDGETS.value
        for name in _PROGRAMS.value or PROGRAMS
        if profile in (PROGRAMS[name].profiles or (profile,))
    ]
    missing = [key for key in keys if _is_missing(read_rows(out), key)]
    for number, key in enumerate(missing, 1):
        rows = read_rows(out)
        free_peak = rows.get(str(key.free), {}).get("compiled_peak_bytes")
        if not key.is_numbers and key.share is not None and free_peak is None:
            print(f"{number}/{len(missing)} {key}: no free plan", flush=True)
            continue
        budget = None
        if key.share is not None and free_peak is not None:
            budget = int(key.share * free_peak)
        row = {**_measured(key, budget), **_environment()}
        rows = {**read_rows(out), str(key): row}
        write_rows(out, rows, COMMAND)
        out.with_suffix(".md").write_text(markdown(rows, COMMAND))
        print(
            f"{number}/{len(missing)} {key}: {outcome(row)}, {row['cpu_seconds']} CPU s", flush=True
        )


def _is_missing(rows: dict[str, Row], key: Key) -> bool:
    row = rows.get(str(key))
    return row is None or _AGAIN.value or (_FAILED.value and "error" in row)


def _measured(key: Key, budget_bytes: int | None) -> dict[str, Any]:
    most_seconds = _MOST.value
    before = os.times()
    completed = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.field.one",
            json.dumps({"key": str(key), "budget_bytes": budget_bytes}),
        ],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "KIWI_PLAN_CACHE": "off"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_CPU, (most_seconds, most_seconds + 5)
        ),
    )
    after = os.times()
    lines = completed.stdout.strip().splitlines()
    if completed.returncode == 0 and lines:
        return json.loads(lines[-1])
    seconds = after.children_user - before.children_user
    printed = completed.stderr.strip().splitlines() or ["it printed nothing"]
    return {
        "error": "ProcessEnded",
        "what": printed[-1][:300],
        "exit": completed.returncode,
        "cpu_seconds": round(seconds, 1),
        "budget_bytes": budget_bytes,
    }


def _environment() -> dict[str, Any]:
    return {
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "jax": metadata.version("jax"),
    }


if __name__ == "__main__":
    app.run(main)
