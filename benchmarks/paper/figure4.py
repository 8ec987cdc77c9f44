"""Figure 4 of the paper: solver seconds against encoder layers, for alpa and joint.

Budgets are shares of the peak of "alpa" without a limit. A run ends when its plan is proven to be
within `--gap` of the best one, when it makes no more progress, or at the time limit. Time and gap
are recorded. The figure shows processor seconds beside wall seconds, because the machine may be
shared.

    python -m benchmarks.paper.figure4
"""

import time
from dataclasses import replace
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
from absl import app, flags

from benchmarks.paper._setup import (
    NO_LIMIT_BYTES,
    Results,
    begin,
    define_flags,
    planned_step,
    shares,
)
from benchmarks.paper.styles import STYLES
from kiwi.mesh import DeviceMesh
from kiwi.options import Settings
from kiwi.planners.registry import planner_named
from kiwi.problem.step import StepToPlan
from kiwi.solver import SolveResult, solve
from kiwi.solver.warm_up import warm_up

define_flags("figure4", seconds=60.0, shares=("1", "0.9"))
_LAYERS = flags.DEFINE_list("layers", ["1", "4", "8", "12", "16", "20"], "Numbers of layers.")
_MESH = flags.DEFINE_string("mesh", "2x4", "The mesh.")
_GAP = flags.DEFINE_float("gap", 0.02, "Proven distance to the best plan at which to stop.")


def main(_: list[str]) -> None:
    """Plans the missing rows, then draws the figure."""
    results = begin("figure4")
    for layers in map(int, _LAYERS.value):
        step, arguments = planned_step("encoder", layers)
        wanted = [f"{layers} {p} {s:g}" for p, s in _cases()]
        if any(key not in results.rows for key in (f"{layers} free", *wanted)):
            _plan(results, layers, step.traced(*arguments))
    _draw(results)


def _cases() -> list[tuple[str, float]]:
    return list(product(("alpa", "joint"), shares()))


def _plan(results: Results, layers: int, traced: StepToPlan) -> None:
    warm_up()
    key = f"{layers} free"
    if key not in results.rows:
        results.add(key, _row(traced, "alpa", None))
    peak = results.rows[key]["peak_bytes"]
    for planner, share in _cases():
        key = f"{layers} {planner} {share:g}"
        if key not in results.rows:
            results.add(key, _row(traced, planner, int(share * peak)))


def _row(traced: StepToPlan, planner: str, limit_bytes: int | None) -> dict[str, Any]:
    """Formulates and solves a problem, and returns the figures of both."""
    shape = tuple(map(int, _MESH.value.split("x")))
    settings = Settings(
        mesh=DeviceMesh.create(shape, flags.FLAGS.profile),
        memory_budget_bytes=limit_bytes or NO_LIMIT_BYTES,
        planner=planner,
        time_limit_seconds=flags.FLAGS.time_limit_seconds,
        verify=None,
        gap=_GAP.value,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    budget_bytes = settings.memory_budget_bytes
    planning = planner_named(planner).formulate(traced, budget_bytes, settings)
    formulated = time.process_time() - cpu, time.perf_counter() - wall
    problem = replace(planning.problem, limit_bytes=limit_bytes)
    wall, cpu = time.perf_counter(), time.process_time()
    result = solve(problem, time_limit_seconds=flags.FLAGS.time_limit_seconds, gap=_GAP.value)
    return {
        "nodes": len(problem.nodes),
        "solver_seconds": round(time.perf_counter() - wall, 3),
        "solver_cpu_seconds": round(time.process_time() - cpu, 3),
        "formulation_seconds": round(formulated[1], 3),
        "formulation_cpu_seconds": round(formulated[0], 3),
        **_found(result),
    }


def _found(result: SolveResult) -> dict[str, Any]:
    return {
        "status": result.status.value,
        "gap": result.gap,
        "step_seconds": result.objective,
        "peak_bytes": result.peak_bytes,
    }


def _draw(results: Results) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6))
    for panel, name in zip(panels, ("solver_cpu_seconds", "solver_seconds"), strict=True):
        for planner, share in _cases():
            seconds_by_layers = {
                int(key.split()[0]): row[name]
                for key, row in results.rows.items()
                if key.endswith(f" {planner} {share:g}")
            }
            layers = sorted(seconds_by_layers)
            panel.plot(
                layers,
                [seconds_by_layers[n] for n in layers],
                color=STYLES[planner][0],
                linestyle="-" if share == 1 else "--",
                marker=STYLES[planner][1],
                label=f"{planner}, budget {share:.0%}",
            )
        panel.set(xlabel="encoder layers", ylim=(0, None), xticks=list(map(int, _LAYERS.value)))
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="seconds", title="processor")
    panels[1].set(title="wall, other work on the machine")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(results.path.with_suffix(".png"), dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    app.run(main)
