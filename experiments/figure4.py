"""Figure 4 of the paper: solver seconds against encoder layers, alpa and joint.

Budgets are shares of the peak of "alpa" without a limit. A run ends once it is proven to be
within `--gap` of the best plan, or at the time limit; both are on record.

    python -m experiments.figure4
"""

from dataclasses import replace
from itertools import product
from typing import Any

import jax
import matplotlib.pyplot as plt
from absl import app, flags

from experiments._figures import NO_LIMIT_BYTES, Results, planned_step
from kiwi.errors import KiwiError
from kiwi.mesh import DeviceMesh
from kiwi.plan.planner import Settings, Traced, make_plan

_LAYERS = flags.DEFINE_list("layers", ["1", "4", "8", "12", "16", "20"], "Numbers of layers.")
_SHARES = flags.DEFINE_list("shares", ["1", "0.9"], "Budgets, of alpa's free peak.")
_MESH = flags.DEFINE_string("mesh", "2x4", "The mesh.")
_GAP = flags.DEFINE_float("gap", 0.02, "Proven distance to the best plan at which to stop.")
_SECONDS = flags.DEFINE_float("time_limit_seconds", 120.0, "For the solver, per plan.")
_OUT = flags.DEFINE_string("out", "experiments/results/figure4.json", "Where results go.")


def main(_: list[str]) -> None:
    """Plans all that is missing, then draws."""
    jax.config.update("jax_platforms", "cpu")
    results = Results(_OUT.value, "python -m experiments.figure4")
    for layers in map(int, _LAYERS.value):
        step, arguments = planned_step("encoder", layers)
        wanted = [f"{layers} {p} {float(s):g}" for p, s in _cases()]
        if any(key not in results.rows for key in (f"{layers} free", *wanted)):
            _plan(results, layers, step.traced(*arguments))
    _draw(results)


def _cases() -> list[tuple[str, str]]:
    return list(product(("alpa", "joint"), _SHARES.value))


def _plan(results: Results, layers: int, traced: Traced) -> None:
    if f"{layers} free" not in results.rows:
        results.add(f"{layers} free", _row(traced, "alpa", NO_LIMIT_BYTES))
    peak = results.rows[f"{layers} free"]["peak_bytes"]
    for planner, share in _cases():
        key = f"{layers} {planner} {float(share):g}"
        if key not in results.rows:
            results.add(key, _row(traced, planner, int(float(share) * peak)))


def _row(traced: Traced, planner: str, budget_bytes: int) -> dict[str, Any]:
    shape = tuple(map(int, _MESH.value.split("x")))
    settings = Settings(
        DeviceMesh.create(shape, "v100-sxm2"),
        budget_bytes,
        planner,
        _SECONDS.value,
        None,
        "auto",
        0,
        _GAP.value,
        respect_user_checkpoint=False,
    )
    try:
        plan = make_plan(replace(traced, seconds=0.0), None, settings)
    except KiwiError as error:
        return {"error": type(error).__name__, "what": error.what}
    return {
        "solver_seconds": plan.solve_result.seconds,
        "planning_seconds": plan.planning_seconds,
        "gap": plan.solve_result.gap,
        "step_seconds": plan.estimate.step_seconds,
        "peak_bytes": plan.estimate.peak_bytes,
    }


def _draw(results: Results) -> None:
    figure, panel = plt.subplots(figsize=(5, 3.4))
    for planner, share in _cases():
        found = {
            int(key.split()[0]): row["solver_seconds"]
            for key, row in results.rows.items()
            if key.endswith(f" {planner} {float(share):g}") and "solver_seconds" in row
        }
        layers = sorted(found)
        panel.plot(
            layers, [found[n] for n in layers], marker="o", label=f"{planner}, {float(share):.0%}"
        )
    panel.set(xlabel="encoder layers", ylabel="solver seconds", ylim=(0, None))
    panel.grid(alpha=0.3)
    panel.legend()
    figure.tight_layout()
    figure.savefig(results.path.with_suffix(".png"), dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    app.run(main)
