"""Figure 2 of the paper: step time of all planners over memory budgets, on four meshes.

Times are estimates relative to "alpa" without a limit on the same mesh. Budgets are the peak of
that plan times `--shares`, and for each planner the smallest peak that its search reaches; "joint"
also plans for those of the others.

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
    count_processor_seconds,
    draw_panel,
    planned_step,
    points,
)
from kiwi.mesh import DeviceMesh

_MODELS = flags.DEFINE_list("models", list(MODELS), "Models.")
_LAYERS = flags.DEFINE_integer("layers", 4, "Layers of the model.")
_MESHES = flags.DEFINE_list("meshes", ["2x4", "4x2", "1x8", "8x1"], "Mesh shapes.")
_SHARES = flags.DEFINE_list("shares", ["1", "0.75", "0.55", "0.4"], "Of alpa's peak.")
_SECONDS = flags.DEFINE_float("time_limit_seconds", 5.0, "Processor seconds of a search.")
_PROFILE = flags.DEFINE_string("profile", "v100-sxm2", "Hardware, of kiwi.mesh.CATALOGUE.")
_OUT = flags.DEFINE_string("out", "experiments/results/figure2.json", "Where results go.")

_LEAST_BYTES_PER_LAYER = 6 * 10**8
"""Copies of operands are modelled as for a budget of this size: below the smallest that is met."""


def main(_: list[str]) -> None:
    """Plans all that is missing, then draws."""
    jax.config.update("jax_platforms", "cpu")
    count_processor_seconds()
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
    run = mesh_run(results, model, mesh)
    free = run.row("alpa", NO_LIMIT_BYTES)
    if "error" in free:
        raise RuntimeError(free["what"])
    budgets = [int(share * free["peak_bytes"]) for share in map(float, _SHARES.value)]
    for planner in PLANNERS:
        run.curve(planner, budgets)
    results.add(f"{model} {mesh} done", _summary(results, f"{model} {mesh}"))


def mesh_run(results: Results, model: str, mesh: str) -> MeshRun:
    """The plans of one panel."""
    step, arguments = planned_step(model, _LAYERS.value)
    shape = tuple(map(int, mesh.split("x")))
    device_mesh = DeviceMesh.create(shape, _PROFILE.value)
    least = _LEAST_BYTES_PER_LAYER * _LAYERS.value
    traced = step.traced(*arguments)
    return MeshRun(traced, device_mesh, least, _SECONDS.value, results, f"{model} {mesh}")


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
        "largest_speed_up_at_bytes": {
            planner: max((b for b in curve if b in joint), key=lambda b: curve[b] / joint[b])
            for planner, curve in curves.items()
            if curve
        },
        "joint_never_slower": all(
            b in joint and joint[b] <= seconds * (1 + 1e-9)
            for curve in curves.values()
            for b, seconds in curve.items()
        ),
    }


def draw(results: Results) -> None:
    """One panel per model and mesh."""
    meshes = [m for m in _MESHES.value if any(f" {m} alpa" in key for key in results.rows)]
    size = (max(7.5, 3.4 * len(meshes)), 2.9 * len(MODELS))
    figure, panels = plt.subplots(len(MODELS), len(meshes), figsize=size, squeeze=False)
    for (row, model), (column, mesh) in product(enumerate(MODELS), enumerate(meshes)):
        draw_panel(panels[row][column], results, f"{model} {mesh}")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(PLANNERS), frameon=False)
    figure.supxlabel("memory budget per device (GB)")
    figure.supylabel("estimated time, relative to alpa without a limit")
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(results.path.with_suffix(".png"), dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    app.run(main)
