"""Plans full-size models of libraries from abstract arrays, and compiles the plans.

pip install dm-haiku numpyro e3nn-jax
python -m benchmarks.models_of_libraries.full_size
python -m benchmarks.models_of_libraries.full_size --examples=numpyro_vae

The models of `OWN` are planned at their size "full", with donated state, on (2, 4) H100s, without a
budget and at 60 % of that plan's compiled peak. XLA:CPU checks the plans. Writes `full_size.json`
and `full_size.md`; rows of other examples stay. Fails if a compiled plan does not meet its budget.
`benchmarks.tunix_models` plans full-size models of google-tunix.
"""

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi
from benchmarks.hardware import priced_as
from benchmarks.models_of_libraries import OWN, example
from benchmarks.models_of_libraries.planned import figures, line, processor_seconds, versions
from kiwi.sizes import format_bytes

_EXAMPLES = flags.DEFINE_list("examples", list(OWN), "Which ones.")
_SHARES = flags.DEFINE_list("shares", ["0.6"], "Budgets.")
_OUT = flags.DEFINE_string("out", "benchmarks/library_results", "Folder of the results.")


def main(_: list[str]) -> None:
    """Plans all models, and writes the results after each one."""
    jax.config.update("jax_platforms", "cpu")
    rows = [row for row in _known_rows() if row["example"] not in _EXAMPLES.value]
    for name in _EXAMPLES.value:
        rows += _rows(name)
        rows.sort(key=lambda row: OWN.index(row["example"]))
        _write(rows)
    sys.exit(any(row["peak_bytes"] > row["budget_bytes"] for row in rows))


def _rows(name: str) -> list[dict[str, Any]]:
    module = example(name)
    config = module.SIZES["full"]
    step = module.make_train_step(config)
    state = jax.eval_shape(lambda: module.make_state(config))
    batch = jax.eval_shape(lambda: module.make_batch(config))
    rows: list[dict[str, Any]] = []
    for share in ("free", *_SHARES.value):
        budget = int(float(share) * rows[0]["peak_bytes"]) if rows else "1TiB"
        started = processor_seconds()
        plan = _plan(step, budget, state, batch)
        seconds = processor_seconds() - started
        print(f"{name}, {share}: {line(plan)}, {seconds:.0f} processor s", flush=True)
        counts = {"recomputed": plan.residency_counts()["recompute"], "of": len(plan.decisions)}
        row = {"example": name, "config": str(config), "share": share, **counts}
        rows.append({**row, **figures(plan, seconds), "notes": [str(note) for note in plan.notes]})
    return rows


def _plan(step: Any, budget: int | str, *arguments: Any) -> kiwi.Plan:
    """Returns a plan of a step that is traced anew, so that the seconds include all that a user
    waits for."""
    options = {
        "mesh_shape": (2, 4),
        "profile": priced_as("h100-sxm", "cpu"),
        "donate_argnums": 0,
        "verify": "cpu",
    }
    return kiwi.jit(step, **options, memory_budget=budget, plan_cache=False).plan(*arguments)


def _known_rows() -> list[dict[str, Any]]:
    path = Path(_OUT.value) / "full_size.json"
    return json.loads(path.read_text())["rows"] if path.exists() else []


def _write(rows: list[dict[str, Any]]) -> None:
    out = Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    about = {
        "date": datetime.date.today().isoformat(),
        "command": "python -m benchmarks.models_of_libraries.full_size",
        **versions(),
    }
    (out / "full_size.json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    (out / "full_size.md").write_text(_report(about, rows))


def _report(about: dict[str, str], rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Models of libraries at full size on (2, 4) H100s, checked with XLA:CPU",
        "",
        f"`{about['command']}`, {', '.join(v for k, v in about.items() if k == 'date')}, "
        + ", ".join(f"{name} {about[name]}" for name in versions())
        + "; abstract arrays. The budget is a share of what the plan without a limit takes as "
        "compiled. Processor seconds are of tracing, planning and checks.",
        "",
        "| example | budget | compiled peak | predicted | step, ms | gap | recomputed | compiled "
        "| processor s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        budget = "free" if row["share"] == "free" else format_bytes(row["budget_bytes"])
        lines.append(
            f"| {row['example']} | {budget} | {format_bytes(row['peak_bytes'])} "
            f"| {row['predicted_bytes'] / row['peak_bytes']:.2f} "
            f"| {1e3 * row['step_seconds']:.1f} | {row['gap']:.1%} "
            f"| {row['recomputed']} of {row['of']} | {row['compiled']} "
            f"| {row['processor_seconds']} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    app.run(main)
