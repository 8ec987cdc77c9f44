"""Figure 2 of the paper: step time of all planners over memory budgets, on four meshes.

Times are estimates relative to "alpa" without a limit on the same mesh. Budgets are the peak of
that plan times `--shares`, and for each planner the smallest peak that its search reaches.

    python -m experiments.figure2
"""

import sys
from itertools import product
from typing import Any

import jax
import matplotlib.pyplot as plt
from absl import app, flags

from experiments._figures import (
    MODELS,
    NO_LIMIT_BYTES,
    PLANNERS,
    MeshRun,
    Results,
    attempt,
    planned_step,
)
from experiments.styles import STYLES
from kiwi.mesh import DeviceMesh

_MODELS = flags.DEFINE_list("models", list(MODELS), "Models.")
_LAYERS = flags.DEFINE_integer("layers", 4, "Layers of the model.")
_MESHES = flags.DEFINE_list("meshes", ["2x4", "4x2", "1x8", "8x1"], "Mesh shapes.")
_SHARES = flags.DEFINE_list("shares", ["1", "0.8", "0.6", "0.5", "0.4", "0.3"], "Of alpa's peak.")
_SECONDS = flags.DEFINE_float("time_limit_seconds", 6.0, "For the solver, per plan.")
_LEAST = flags.DEFINE_bool("least", True, "Also look for each planner's smallest budget.")
_PROFILE = flags.DEFINE_string("profile", "v100-sxm2", "Hardware, of kiwi.mesh.CATALOGUE.")
_OUT = flags.DEFINE_string("out", "experiments/results/figure2.json", "Where results go.")

_LEAST_BYTES_PER_LAYER = 6 * 10**8
"""Copies of operands are modelled as for a budget of this size: below the smallest that is met."""


def main(_: list[str]) -> None:
    """Plans all that is missing, then draws."""
    jax.config.update("jax_platforms", "cpu")
    results = Results(_OUT.value, " ".join(["python -m experiments.figure2", *sys.argv[1:]]))
    for mesh, model in product(_MESHES.value, _MODELS.value):
        if f"{model} {mesh} done" not in results.rows:
            _plan_mesh(results, model, mesh)
            draw(results)
    for mesh, model in product(_MESHES.value, _MODELS.value):
        what = f"{model} {mesh}"
        if f"{what} done" in results.rows:
            results.add(f"{what} done", _summary(results, what))
    draw(results)


def _plan_mesh(results: Results, model: str, mesh: str) -> None:
    step, arguments = planned_step(model, _LAYERS.value)
    shape = tuple(map(int, mesh.split("x")))
    device_mesh = DeviceMesh.create(shape, _PROFILE.value)
    shares = sorted(map(float, _SHARES.value))
    least = _LEAST_BYTES_PER_LAYER * _LAYERS.value
    run = MeshRun(step.traced(*arguments), device_mesh, least, _SECONDS.value)
    free = attempt(run, "alpa", NO_LIMIT_BYTES)
    if "error" in free:
        raise RuntimeError(free["what"])
    results.add(f"{model} {mesh} free", free)
    budgets = [int(share * free["peak_bytes"]) for share in shares]
    if _LEAST.value:
        budgets += _least_peaks(run, results, f"{model} {mesh}")
    for budget in sorted(set(budgets)):
        for planner in PLANNERS:
            key = f"{model} {mesh} {planner} {budget}"
            if key in results.rows:
                continue
            row = attempt(run, planner, budget)
            results.add(key, {"budget_bytes": budget, "planner": planner, **row})
    results.add(f"{model} {mesh} done", _summary(results, f"{model} {mesh}"))


def _least_peaks(run: MeshRun, results: Results, what: str) -> list[int]:
    """The smallest peaks of plans found when the search is for a budget that none meets."""
    found = []
    for planner in PLANNERS:
        key = f"{what} {planner} least"
        if key not in results.rows:
            results.add(key, attempt(run, planner, 1))
        row = results.rows[key]
        if row.get("least_peak_bytes"):
            found.append(round(1.01 * row["least_peak_bytes"]))
    return found


def points(results: Results, what: str, planner: str) -> list[tuple[int, float]]:
    """(budget bytes, step seconds) of one planner: the fastest plan of all that fit.

    Budgets are those asked for and the peaks of all plans: the curve changes there alone.
    """
    rows = [
        row for key, row in results.rows.items() if key.startswith(f"{what} ") and "planner" in row
    ]
    solved = [row for row in rows if "step_seconds" in row]
    own = [row for row in solved if row["planner"] == planner]
    budgets = {row["budget_bytes"] for row in rows} | {row["peak_bytes"] for row in solved}
    found = []
    for budget in sorted(budgets):
        fits = [row["step_seconds"] for row in own if row["peak_bytes"] <= budget]
        if fits:
            found.append((budget, min(fits)))
    return found


def _summary(results: Results, what: str) -> dict[str, Any]:
    """Smallest feasible budgets, joint's largest speed-ups, and whether it ever loses."""
    curves = {planner: dict(points(results, what, planner)) for planner in PLANNERS}
    joint = curves["joint"]
    ratios = {
        planner: [seconds / joint[b] for b, seconds in curve.items() if b in joint]
        for planner, curve in curves.items()
    }
    return {
        "smallest_feasible_bytes": {p: min(c, default=None) for p, c in curves.items()},
        "largest_speed_up": {p: max(r, default=None) for p, r in ratios.items()},
        "joint_never_slower": all(
            b in joint and joint[b] <= seconds * (1 + 1e-9)
            for curve in curves.values()
            for b, seconds in curve.items()
        ),
    }


def draw(results: Results) -> None:
    """One panel per model and mesh."""
    meshes = [m for m in _MESHES.value if any(f" {m} free" in key for key in results.rows)]
    size = (max(7.5, 3.4 * len(meshes)), 2.9 * len(MODELS))
    figure, panels = plt.subplots(len(MODELS), len(meshes), figsize=size, squeeze=False)
    for (row, model), (column, mesh) in product(enumerate(MODELS), enumerate(meshes)):
        _panel(panels[row][column], results, f"{model} {mesh}")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(PLANNERS), frameon=False)
    figure.supxlabel("memory budget per device (GB)")
    figure.supylabel("estimated time, relative to alpa without a limit")
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(results.path.with_suffix(".png"), dpi=130)
    plt.close(figure)


def _panel(panel: Any, results: Results, what: str) -> None:
    panel.set_title(what)
    free = results.rows.get(f"{what} free")
    if free is None:
        panel.set_axis_off()
        return
    for planner in PLANNERS:
        found = points(results, what, planner)
        colour, marker = STYLES[planner]
        panel.plot(
            [budget / 1e9 for budget, _ in found],
            [seconds / free["step_seconds"] for _, seconds in found],
            label=planner,
            color=colour,
            marker=marker,
            markersize=5 if planner == "joint" else 3,
            drawstyle="steps-post",
            linewidth=1.8 if planner == "joint" else 1.1,
        )
    panel.grid(alpha=0.3)


if __name__ == "__main__":
    app.run(main)
