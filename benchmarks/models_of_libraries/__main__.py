"""Trains models of libraries with and without plans, for three budgets each.

pip install dm-haiku numpyro e3nn-jax
pip install --no-deps google-tunix safetensors qwix
python -m benchmarks.models_of_libraries                       # at size "small", 5 steps
python -m benchmarks.models_of_libraries --size=tiny --examples=accumulation,haiku_gpt

The models are those of `examples._compare`, which need only the package's extra `examples`, and
those of this folder. Writes `models_of_libraries.json` and `.md`; rows of other examples stay.
Fails if a compiled peak is over its budget, or a loss differs.
"""

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

from benchmarks.models_of_libraries import NAMES, PACKAGES, example
from benchmarks.models_of_libraries.planned import versions
from examples._compare import SHARES, TOLERANCE, Row, Training, as_json, row_of
from kiwi.sizes import format_bytes

_SIZE = flags.DEFINE_string("size", "small", "Of the examples.")
_STEPS = flags.DEFINE_integer("steps", 5, "Training steps.")
_EXAMPLES = flags.DEFINE_list("examples", list(NAMES), "Which ones.")
_OUT = flags.DEFINE_string("out", "benchmarks/library_results", "Folder of the results.")


def main(_: list[str]) -> None:
    """Trains all models, and writes the results after each one."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    rows = [row for row in _known_rows() if row.example not in _EXAMPLES.value]
    for name in _EXAMPLES.value:
        rows += _training(name).rows(SHARES, _STEPS.value)
        rows.sort(key=lambda row: NAMES.index(row.example))
        _write(rows)
        jax.clear_caches()
    print(_report(rows))
    sys.exit(not all(_holds(row) for row in rows))


def _training(name: str) -> Training:
    try:
        return Training.of(name, _SIZE.value, module=example(name))
    except ModuleNotFoundError as error:
        sys.exit(f"{name}: {error}. To be installed: {PACKAGES}.")


def _known_rows() -> list[Row]:
    path = Path(_OUT.value) / "models_of_libraries.json"
    return [row_of(row) for row in json.loads(path.read_text())["rows"]] if path.exists() else []


def _holds(row: Row) -> bool:
    return row.peak_bytes <= row.budget_bytes and row.difference < TOLERANCE


def _write(rows: list[Row]) -> None:
    out = Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {**_environment(), "rows": [as_json(row) for row in rows]}
    (out / "models_of_libraries.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "models_of_libraries.md").write_text(_report(rows))


def _environment() -> dict[str, str]:
    return {
        "date": datetime.date.today().isoformat(),
        "command": f"python -m benchmarks.models_of_libraries --size={_SIZE.value}",
        **versions(),
    }


def _report(rows: list[Row]) -> str:
    about = _environment()
    known = ", ".join(f"{name} {about[name]}" for name in versions())
    lines = [
        "# Models of libraries, trained with and without plans",
        "",
        f"`{about['command']}`, {about['date']}, {known}; "
        f"mesh (2, 4) of virtual CPU devices, {_STEPS.value} steps. "
        "Budgets are shares of what the plan without a limit takes as compiled, or the least one "
        "that a plan was found to meet. The difference is the largest relative one of a loss.",
        "",
        "| example | budget | compiled peak | predicted | recomputed | difference |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row.example} | {format_bytes(row.budget_bytes)} | {format_bytes(row.peak_bytes)} "
            f"| {row.estimated_bytes / row.peak_bytes:.2f} | {row.recomputed} of {row.operators} "
            f"| {row.difference:.1e} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    app.run(main)
