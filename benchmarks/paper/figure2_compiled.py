"""Compiles plans of figure 2, and records their figures beside the estimates.

For each planned panel (`python -m benchmarks.paper.figure2`, which stores its plans beside the
results) these plans are compiled: the plans with the smallest peak of "alpa", "alpa+dots",
"two-pass" and "joint", and the plans of "joint" in the memory of the first two. Nothing is
executed. `--target=cuda` needs the compiler of `kiwi-planner[aot-cuda]`.

    python -m benchmarks.paper.figure2_compiled
"""

import time
from itertools import product
from typing import Any

import jax
from absl import app, flags

from benchmarks.paper._mesh_run import Found, MeshRun
from benchmarks.paper._setup import MODELS, NO_LIMIT_BYTES, Results
from benchmarks.paper.figure2 import mesh_run
from kiwi.errors import KiwiError
from kiwi.xla.compilers import compile_for

_TARGET = flags.DEFINE_enum("target", "cpu", ["cpu", "cuda"], "The compiler.")
_PLANS = flags.DEFINE_string(
    "plans", "benchmarks/paper/results/figure2.json", "What figure 2 found."
)
_COMPILED = flags.DEFINE_string(
    "compiled", "benchmarks/paper/results/figure2_compiled.json", "Where results go."
)


def main(_: list[str]) -> None:
    """Compiles the missing plans."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    planned = Results(_PLANS.value, "")
    compiled = Results(_COMPILED.value, "python -m benchmarks.paper.figure2_compiled")
    for mesh, model in product(flags.FLAGS.meshes, MODELS):
        if f"{model} {mesh} done" in planned.rows:
            _compile(mesh_run(planned, model, mesh), f"{model} {mesh}", compiled)


def _compile(run: MeshRun, what: str, compiled: Results) -> None:
    for name, found in _chosen(run).items():
        key = f"{what} {name} {_TARGET.value}"
        if key not in compiled.rows:
            compiled.add(key, _row(run, found))


def _chosen(run: MeshRun) -> dict[str, Found]:
    """Returns the plans to compile, by a description of each."""
    least: dict[str, Found] = {}
    for planner in ("alpa", "alpa+dots", "two-pass", "joint"):
        candidates = run.fitting(NO_LIMIT_BYTES, planner)
        if candidates:
            least[planner] = min(candidates, key=lambda f: f.row["peak_bytes"])
    chosen = {f"{planner}, smallest": candidates for planner, candidates in least.items()}
    for planner in ("alpa", "alpa+dots"):
        if planner in least:
            beside = run.fitting(least[planner].row["peak_bytes"], "joint")
            if beside and beside[0] not in chosen.values():
                chosen[f"joint, beside {planner}"] = beside[0]
    return chosen


def _row(run: MeshRun, found: Found) -> dict[str, Any]:
    plan = run.plan_of(found)
    started = time.perf_counter()
    row = {
        "step_seconds": plan.estimate.step_seconds,
        "recomputed_units": len(plan.execution.recomputed),
        "estimated_peak_bytes": plan.estimate.peak_bytes,
        "estimated_collective_bytes": sum(u.bytes for u in plan.estimate.collectives.values()),
        "estimated_collectives": {k: u.count for k, u in plan.estimate.collectives.items()},
    }
    try:
        program = compile_for(_TARGET.value, plan.step)
    except KiwiError as error:
        return {**row, "error": type(error).__name__, "what": error.what}
    return {
        **row,
        "compiled_peak_bytes": program.peak_bytes,
        "peak_ratio": round(program.peak_bytes / plan.estimate.peak_bytes, 4),
        "compiled_collective_bytes": program.collective_bytes,
        "compiled_collectives": {k: u.count for k, u in program.collectives.items()},
        "compile_seconds": round(time.perf_counter() - started, 1),
    }


if __name__ == "__main__":
    app.run(main)
