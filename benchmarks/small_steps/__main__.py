"""Plans the missing steps, and writes the table; see `benchmarks.small_steps`."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

from benchmarks.provenance import commit
from benchmarks.small_steps import planned
from benchmarks.small_steps.claims import CLAIMS
from benchmarks.small_steps.drawn import drawn

_FOLDER = Path(__file__).parent
_FIRST = flags.DEFINE_integer("first", 0, "The first seed.")
_STEPS = flags.DEFINE_integer("steps", 100, "How many seeds.")
_OUT = flags.DEFINE_string("out", str(_FOLDER / "results.json"), "The rows; the table is beside.")
_ONE = flags.DEFINE_integer("one", -1, "Plans one seed in this process, and prints its rows.")
_SECONDS = flags.DEFINE_integer("seconds", 1200, "By the clock: the most that a step may take.")
_OTHERS_EVERY = 4
Steps = dict[str, Any]


def main(_: list[str]) -> None:
    """Plans the missing steps, each in a process of its own."""
    if _ONE.value >= 0:
        _plan_one(_ONE.value)
        return
    path = Path(_OUT.value)
    steps: Steps = json.loads(path.read_text()) if path.exists() else {}
    for seed in range(_FIRST.value, _FIRST.value + _STEPS.value):
        if str(seed) not in steps:
            steps[str(seed)] = _measured(seed)
            path.write_text(json.dumps(steps, indent=0) + "\n")
            path.with_suffix(".md").write_text("\n".join(table(steps)) + "\n")
            _print_progress(seed, steps[str(seed)])


def _plan_one(seed: int) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    for row in planned.rows(drawn(seed), asks_others=seed % _OTHERS_EVERY == 0):
        print("row " + json.dumps(row), flush=True)


def _measured(seed: int) -> dict[str, Any]:
    """Returns a step with its rows; a process that XLA ends gives the rows before it."""
    command = [sys.executable, "-m", "benchmarks.small_steps", f"--one={seed}"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS.value)
        output, ending = ended.stdout, f"exit code {ended.returncode}"
    except subprocess.TimeoutExpired as late:
        output, ending = (late.stdout or b"").decode(), f"over {_SECONDS.value} s"
    lines = [line.removeprefix("row ") for line in output.splitlines() if line.startswith("row ")]
    case = drawn(seed)
    return {
        "name": case.name,
        "mesh_shape": case.mesh_shape,
        "profile": case.profile,
        "commit": commit(),
        "ending": ending,
        "rows": [json.loads(line) for line in lines],
    }


def _print_progress(seed: int, step: Mapping[str, Any]) -> None:
    seconds = sum(row["cpu_seconds"] for row in step["rows"])
    broken = [line for claim in CLAIMS.values() for line in claim(step["rows"])]
    print(seed, step["profile"], step["name"], step["ending"], f"{seconds:.0f} CPU s", flush=True)
    for line in broken:
        print("   ", line, flush=True)


def table(steps: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yields the lines of the page: counts, and the broken claims."""
    plannings = [row for step in steps.values() for row in step["rows"]]
    budgets = [row for row in plannings if row["planner"] == "joint" and row["budget_bytes"]]
    refused = [row for row in budgets if row["error"]]
    others = [row for row in plannings if row["planner"] != "joint" and not row["error"]]
    yield "# Claims about the plans of random small steps"
    yield ""
    yield "command: python -m benchmarks.small_steps  "
    yield f"commits: {', '.join(sorted({step['commit'] for step in steps.values()}))}"
    yield ""
    yield f"- {len(steps)} steps, {len(budgets)} budgets of which {len(refused)} are refused,"
    yield f"  {len(others)} plans of other planners."
    yield f"- Programs of a plan under a budget: {_programs(budgets)}."
    for title, claim in CLAIMS.items():
        broken = {seed: list(claim(step["rows"])) for seed, step in steps.items()}
        count = sum(map(len, broken.values()))
        yield from ("", f"## {title}: {count}", "")
        if count:
            yield "| seed | hardware | mesh | step | |"
            yield "| ---: | --- | --- | --- | --- |"
        for seed, lines in broken.items():
            yield from (_line(seed, steps[seed], line) for line in lines)


def _programs(budgets: Sequence[Mapping[str, Any]]) -> str:
    counts = sorted(len(row["compiled_peaks_bytes"]) for row in budgets if not row["error"])
    if not counts:
        return "none"
    return f"{counts[len(counts) // 2]} in the median, {counts[-1]} at most"


def _line(seed: str, step: Mapping[str, Any], broken: str) -> str:
    mesh = " x ".join(map(str, step["mesh_shape"]))
    return f"| {seed} | {step['profile']} | {mesh} | {step['name']} | {broken} |"


if __name__ == "__main__":
    app.run(main)
