"""The error of the estimated peak and collectives against programs that XLA:CPU compiles.

For each example model and mesh there is one plan without a budget, then plans at shares of its
compiled peak. Nothing is executed. Results are written after every plan, so an interrupted run
continues where it stopped.

    python -m benchmarks.paper.estimate_against_compiled
"""

import datetime
import json
import platform
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
from absl import app, flags

import kiwi

_MODELS = flags.DEFINE_list(
    "models",
    ["mlp:mlp-8l", "convnet:tiny-average", "encoder:encoder-13b-1l", "gpt:gpt-13b-1l"],
    "Example models as module:size.",
)
_MESHES = flags.DEFINE_list("meshes", ["1x1", "2x4", "8x1"], "Mesh shapes.")
_SHARES = flags.DEFINE_list("shares", ["0.8", "0.6"], "Budgets, as shares of the free peak.")
_SECONDS = flags.DEFINE_float("time_limit_seconds", 15.0, "For the solver, per plan.")
_OUT = flags.DEFINE_string("out", "benchmarks/paper/results/estimate.json", "Where results go.")

_NO_BUDGET = "1024TiB"


def main(_: list[str]) -> None:
    """Plans the missing rows."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    out = Path(_OUT.value)
    results: dict[str, Any] = {"environment": _environment(), "rows": {}}
    if out.exists():
        results = json.loads(out.read_text())
    rows = results["rows"]
    for model in _MODELS.value:
        for mesh in _MESHES.value:
            for share in (None, *map(float, _SHARES.value)):
                key = f"{model} {mesh} {'free' if share is None else share}"
                if key not in rows:
                    rows[key] = _row(model, mesh, share, rows)
                    out.parent.mkdir(parents=True, exist_ok=True)
                    out.write_text(json.dumps(results, indent=1) + "\n")
                print(key, json.dumps(rows[key]), flush=True)


def _environment() -> dict[str, str]:
    return {
        "date": datetime.date.today().isoformat(),
        "command": "python -m benchmarks.paper.estimate_against_compiled",
        "jax": jax.__version__,
        "kiwi": kiwi.__version__,
        "python": platform.python_version(),
    }


def _row(model: str, mesh: str, share: float | None, rows: dict[str, Any]) -> dict[str, Any]:
    budget: int | str = _NO_BUDGET
    if share is not None:
        budget = int(share * rows[f"{model} {mesh} free"]["compiled_peak_bytes"])
    started = time.monotonic()
    try:
        plan = _plan(model, tuple(map(int, mesh.split("x"))), budget)
    except kiwi.errors.KiwiError as error:
        return {"error": type(error).__name__, "what": error.what}
    compiled = plan.compiled
    assert compiled is not None
    return {
        "budget_bytes": None if share is None else budget,
        "estimated_peak_bytes": plan.estimate.peak_bytes,
        "compiled_peak_bytes": compiled.peak_bytes,
        "ratio": round(plan.estimate.peak_bytes / compiled.peak_bytes, 4),
        "fits": None if share is None else plan.fits,
        "estimated_collective_bytes": sum(u.bytes for u in plan.estimate.collectives.values()),
        "compiled_collective_bytes": compiled.collective_bytes,
        "step_seconds": plan.estimate.step_seconds,
        "recomputed": plan.residency_counts()["recompute"],
        "gap": plan.solve_result.gap,
        "seconds": round(time.monotonic() - started, 1),
    }


def _plan(model: str, mesh_shape: tuple[int, ...], budget: int | str) -> kiwi.Plan:
    name, size = model.split(":")
    module = import_module(f"examples.{name}")
    config = module.SIZES[size]
    return kiwi.plan(
        module.make_train_step(config),
        module.abstract_state(config),
        module.abstract_batch(config),
        mesh_shape=mesh_shape,
        memory_budget=budget,
        donate_argnums=0,
        time_limit_seconds=_SECONDS.value,
    )


if __name__ == "__main__":
    app.run(main)
