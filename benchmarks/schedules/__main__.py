"""Ten plans of one model, in their order by the estimate and as compiled.

    python -m benchmarks.schedules --models=gpt,encoder --targets=v5e,h100-sxm

Each model is planned under different budgets and by different planners, and compiled for the
target. The schedule of each compiled program is simulated with the profile's prices
(`kiwi.xla.simulated`). Spearman's rank correlation of both times shows whether the planner orders
plans like the compiled programs. The median of compiled over planned shows the error. An
interrupted run continues where it stopped. Writes `results.json` and `results.md` into this folder.
"""

import datetime
import json
import statistics
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from absl import app, flags
from scipy.stats import spearmanr

import kiwi
from benchmarks.fidelity.models import MODELS
from benchmarks.provenance import commit
from kiwi.errors import KiwiError

_MODELS = flags.DEFINE_list("models", ["mlp", "gpt", "encoder", "moe"], "Of benchmarks.fidelity.")
_TARGETS = flags.DEFINE_list("targets", ["v5e", "h100-sxm"], "Profiles; each by its own compiler.")
_EFFORT = flags.DEFINE_string("effort", "quick", "Of each search.")
_FOLDER = Path(__file__).parent

MESH_SHAPE = (2, 4)
PLANS = (
    ("joint", None),
    ("joint", 95),
    ("joint", 90),
    ("joint", 80),
    ("joint", 75),
    ("joint", 70),
    ("alpa", None),
    ("two-pass", 80),
    ("alpa+dots", None),
    ("alpa+megatron", None),
)
"""Planners and budgets, in % of the compiled peak of the first plan. Most models have no plan for
half of it, and proving that takes minutes."""

Row = dict[str, Any]


def main(_: list[str]) -> None:
    """Plans the missing rows, and writes the table."""
    jax.config.update("jax_platforms", "cpu")
    out = _FOLDER / "results.json"
    rows: dict[str, Row] = json.loads(out.read_text())["rows"] if out.exists() else {}
    for target in _TARGETS.value:
        for model in _MODELS.value:
            for planner, share in PLANS:
                key = f"{target} {model} {planner} {share or 'free'}"
                if key in rows:
                    continue
                free_bytes = rows.get(f"{target} {model} joint free", {}).get("peak_bytes")
                budget = None if share is None else share * int(free_bytes) // 100
                rows[key] = _row(model, target, planner, budget)
                print(key, rows[key], flush=True)
                out.write_text(json.dumps({"rows": rows, **_provenance()}, indent=1) + "\n")
    (_FOLDER / "results.md").write_text("\n".join(_table(rows)) + "\n")
    print("\n".join(_table(rows)))


def _row(model: str, profile: str, planner: str, budget: int | None) -> Row:
    module, config = MODELS[model].module, MODELS[model].config
    limits = {} if budget is None else {"memory_budget": budget}
    try:
        plan = kiwi.plan(
            module.make_train_step(config),
            module.abstract_state(config),
            module.abstract_batch(config),
            mesh_shape=MESH_SHAPE,
            profile=profile,
            planner=planner,
            effort=_EFFORT.value,
            donate_argnums=0,
            **limits,
        )
    except KiwiError as error:
        return {"error": type(error).__name__}
    compiled = plan.compiled
    assert compiled is not None and compiled.time is not None
    return {
        "compiler": compiled.target,
        "peak_bytes": plan.peak_bytes,
        "planned_seconds": plan.estimate.step_seconds,
        "planned_hidden_seconds": plan.estimate.hidden_seconds,
        "overlaps": compiled.is_overlapping,
        "overlap": compiled.overlap if compiled.is_overlapping else None,
        "compiled_seconds": compiled.time.step_seconds,
        "compute_seconds": compiled.time.compute_seconds,
        "exposed_seconds": compiled.time.exposed_seconds,
    }


def _table(rows: Mapping[str, Row]) -> Iterator[str]:
    yield "| profile | model | plans | rank correlation | compiled / planned | least | most |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for group in dict.fromkeys(" ".join(key.split()[:2]) for key in rows):
        plans = [r for key, r in rows.items() if key.startswith(group + " ") and "error" not in r]
        planned = [r["planned_seconds"] for r in plans]
        compiled = [r["compiled_seconds"] for r in plans]
        ratios = [c / p for c, p in zip(compiled, planned, strict=True)]
        order = f"{spearmanr(planned, compiled).statistic:.3f}" if len(plans) > 2 else "-"
        target, model = group.split()
        yield (
            f"| {target} | {model} | {len(plans)} | {order} | {statistics.median(ratios):.3f} | "
            f"{min(ratios):.3f} | {max(ratios):.3f} |"
        )


def _provenance() -> dict[str, Any]:
    return {
        "command": "python -m benchmarks.schedules",
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "libtpu")},
    }


if __name__ == "__main__":
    app.run(main)
