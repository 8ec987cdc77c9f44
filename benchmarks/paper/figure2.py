"""Figure 2 of the paper: step time of all planners over memory budgets, on four meshes.

Times are estimates relative to "alpa" without a limit on the same mesh. Budgets are the peak of
that plan times `--shares`, and for each planner the smallest peak that its search reaches. "joint"
also plans for a grid of budgets, and for the peaks of the other planners.

    python -m benchmarks.paper.figure2
"""

from itertools import product

import matplotlib.pyplot as plt
from absl import app, flags

from benchmarks.paper._mesh_run import BASELINES, MeshRun
from benchmarks.paper._panels import draw_legend, draw_panel, summary
from benchmarks.paper._setup import (
    MODELS,
    NO_LIMIT_BYTES,
    Results,
    begin,
    define_flags,
    planned_step,
    shares,
)
from kiwi.mesh import DeviceMesh

define_flags("figure2", seconds=5.0, shares=("1", "0.75", "0.55", "0.4"))
_MODELS = flags.DEFINE_list("models", list(MODELS), "Models.")
_LAYERS = flags.DEFINE_integer("layers", 4, "Layers of the model.")
_MESHES = flags.DEFINE_list("meshes", ["2x4", "4x2", "1x8", "8x1"], "Mesh shapes.")

_LEAST_BYTES_PER_LAYER = 6 * 10**8
"""The budget, per layer, that decides which copies of operands the problem models. It is smaller
than any budget that is met."""


def main(_: list[str]) -> None:
    """Plans the missing panels, then draws the figure."""
    results = begin("figure2")
    for mesh, model in product(_MESHES.value, _MODELS.value):
        if f"{model} {mesh} done" not in results.rows:
            _plan_mesh(results, model, mesh)
            draw(results)
    for mesh, model in product(_MESHES.value, _MODELS.value):
        what = f"{model} {mesh}"
        if f"{what} done" in results.rows:
            results.add(f"{what} done", summary(results, what))
    draw(results)


def _plan_mesh(results: Results, model: str, mesh: str) -> None:
    run = mesh_run(results, model, mesh)
    free = run.row("alpa", NO_LIMIT_BYTES)
    if "error" in free:
        raise RuntimeError(free["what"])
    budgets = [int(share * free["peak_bytes"]) for share in shares()]
    for planner in BASELINES:
        run.baseline(planner, budgets)
    run.joint(budgets)
    results.add(f"{model} {mesh} done", summary(results, f"{model} {mesh}"))


def mesh_run(results: Results, model: str, mesh: str) -> MeshRun:
    """Returns the plans of one panel."""
    step, arguments = planned_step(model, _LAYERS.value)
    shape = tuple(map(int, mesh.split("x")))
    device_mesh = DeviceMesh.create(shape, flags.FLAGS.profile)
    least, seconds = _LEAST_BYTES_PER_LAYER * _LAYERS.value, flags.FLAGS.time_limit_seconds
    traced = step.traced(*arguments)
    return MeshRun(traced, device_mesh, least, seconds, results, f"{model} {mesh}")


def draw(results: Results) -> None:
    """Draws one panel per model and mesh."""
    meshes = [m for m in _MESHES.value if any(f" {m} alpa" in key for key in results.rows)]
    size = (max(7.5, 3.4 * len(meshes)), 2.9 * len(MODELS))
    figure, panels = plt.subplots(len(MODELS), len(meshes), figsize=size, squeeze=False)
    for (row, model), (column, mesh) in product(enumerate(MODELS), enumerate(meshes)):
        draw_panel(panels[row][column], results, f"{model} {mesh}")
    draw_legend(figure, panels[0][0])
    figure.supxlabel("memory budget per device (GB)")
    figure.supylabel("estimated time, relative to alpa without a limit")
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(results.path.with_suffix(".png"), dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    app.run(main)
