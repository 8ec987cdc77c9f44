"""Runs the cases that have no recorded result; see `benchmarks.anywhere`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks.anywhere.planned import CASES
from benchmarks.provenance import commit

_FOLDER = Path(__file__).parent
_CASES = flags.DEFINE_list("cases", list(CASES), "Which steps.")
_BUSY = 2
_PERIOD_SECONDS = 0.05
"""How long a slowed process runs, and then is stopped."""
RUNS = ("alone", "beside", "slowed", "thorough")
Rows = dict[str, Any]


def main(_: list[str]) -> None:
    """Runs the missing cases, and writes the table."""
    path = _FOLDER / "results.json"
    rows: Rows = json.loads(path.read_text()) if path.exists() else {}
    for case in _CASES.value:
        for how in RUNS:
            key = f"{case} {how}"
            if key not in rows:
                rows[key] = {"commit": commit(), "rows": _planned(case, how)}
                path.write_text(json.dumps(rows, indent=1) + "\n")
                print(key, [row["seconds"] for row in rows[key]["rows"]], flush=True)
    (_FOLDER / "results.md").write_text("\n".join(table(rows)) + "\n")


def _planned(case: str, how: str) -> list[Any]:
    effort = "thorough" if how == "thorough" else "normal"
    command = [sys.executable, "-m", "benchmarks.anywhere.planned", case, effort]
    with ExitStack() as stack:
        for _ in range(_BUSY if how == "beside" else 0):
            stack.enter_context(_counting())
        environment = {**os.environ, "KIWI_PLAN_CACHE": "off"}
        process = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        )
        if how == "slowed":
            _slow(process)
        output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with {process.returncode}.")
    return json.loads(output.splitlines()[-1])


@contextmanager
def _counting() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _slow(process: "subprocess.Popen[str]") -> None:
    """Pins a process to one core, and stops it for half of the time until it ends."""
    os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
    while process.poll() is None:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            process.send_signal(number)
            time.sleep(_PERIOD_SECONDS)


def table(rows: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of the page, with one row for each step and budget."""
    yield "# The same plan anywhere"
    yield ""
    yield f"commits: {', '.join(sorted({str(row['commit']) for row in rows.values()}))}  "
    yield "command: python -m benchmarks.anywhere"
    yield ""
    yield "Seconds are by the clock, and tell how busy the machine was, with other programs, too."
    yield ""
    yield "| step | budget MiB | decisions | step ms | thorough | alone s | beside s | slowed s |"
    yield "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |"
    for case in CASES:
        runs_of_case = [rows.get(f"{case} {how}", {}).get("rows") for how in RUNS]
        if runs_of_case[0]:
            runs = [run or [None] * len(runs_of_case[0]) for run in runs_of_case]
            yield from (_line(case, *columns) for columns in zip(*runs, strict=True))


def _line(
    case: str, alone: Rows, beside: Rows | None, slowed: Rows | None, thorough: Rows | None
) -> str:
    """Returns one row of the table. A run that is missing so far is None."""
    budget, decisions = (
        f"{alone['budget_bytes'] / 2**20:.0f} ({alone['share']:.0%})",
        alone["decisions"],
    )
    runs = [row for row in (alone, beside, slowed) if row is not None]
    same = all(row["decisions"] == decisions and row["is_repeatable"] for row in runs)
    step = "refused" if alone["step_seconds"] is None else f"{1e3 * alone['step_seconds']:.2f}"
    if thorough is None or alone["step_seconds"] is None or thorough["step_seconds"] is None:
        more = "refused" if thorough and thorough["error"] else "-"
    else:
        more = f"{thorough['step_seconds'] / alone['step_seconds'] - 1:+.2%}"
    seconds = ("-" if row is None else f"{row['seconds']:.1f}" for row in (alone, beside, slowed))
    verdict = "identical" + f" in {len(runs)} runs" * (len(runs) < 3) if same else "DIFFERENT"
    return f"| {case} | {budget} | {verdict} | {step} | {more} | {' | '.join(seconds)} |"


if __name__ == "__main__":
    app.run(main)
