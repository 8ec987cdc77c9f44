"""Figure 3 of the paper: the decoder on (1, 4) while the links slow down.

For each slow-down of the links, all planners over budgets, relative to "alpa" without a limit
under the same links; and how much of the step "joint" spends on recomputation. Budgets are
shares of alpa's peak under fast links, the same for all.

    python -m experiments.figure3
"""

from dataclasses import replace
from typing import Any

import jax
import matplotlib.pyplot as plt
from absl import app, flags

from experiments._figures import NO_LIMIT_BYTES, PLANNERS, MeshRun, Results, attempt, planned_step
from experiments.styles import STYLES
from kiwi.mesh import DeviceMesh, hardware

_SLOWDOWNS = flags.DEFINE_list("slowdowns", ["1", "10", "100"], "Of the links' bandwidth.")
_SHARES = flags.DEFINE_list("shares", ["1", "0.85", "0.7", "0.6"], "Of alpa's free peak.")
_SECONDS = flags.DEFINE_float("time_limit_seconds", 6.0, "For the solver, per plan.")
_PROFILE = flags.DEFINE_string("profile", "v100-sxm2", "Hardware, of kiwi.mesh.CATALOGUE.")
_OUT = flags.DEFINE_string("out", "experiments/results/figure3.json", "Where results go.")


def main(_: list[str]) -> None:
    """Plans all that is missing, then draws."""
    jax.config.update("jax_platforms", "cpu")
    results = Results(_OUT.value, "python -m experiments.figure3")
    step, arguments = planned_step("decoder")
    for slowdown in map(float, _SLOWDOWNS.value):
        if f"{slowdown:g} done" not in results.rows:
            run = MeshRun(step.traced(*arguments), _mesh(slowdown), 6 * 10**9, _SECONDS.value)
            _plan(results, run, slowdown)
    _draw(results)


def _mesh(slowdown: float) -> DeviceMesh:
    entry = hardware(_PROFILE.value)
    slower = entry.intra_link.bandwidth_bytes_per_second / slowdown
    link = replace(entry.intra_link, bandwidth_bytes_per_second=slower)
    return DeviceMesh.create((1, 4), replace(entry, intra_link=link))


def _plan(results: Results, run: MeshRun, slowdown: float) -> None:
    free = attempt(run, "alpa", NO_LIMIT_BYTES)
    if "error" in free:
        raise RuntimeError(free["what"])
    results.add(f"{slowdown:g} free", free)
    fast = results.rows["1 free"]["peak_bytes"] if "1 free" in results.rows else free["peak_bytes"]
    for share in sorted(map(float, _SHARES.value)):
        for planner in PLANNERS:
            row = attempt(run, planner, int(share * fast))
            about = {"slowdown": slowdown, "planner": planner, "budget_bytes": int(share * fast)}
            results.add(f"{slowdown:g} {planner} {share:g}", {**about, **row})
    results.add(f"{slowdown:g} done", _summary(results, slowdown))


def _rows(results: Results, slowdown: float, planner: str) -> list[dict[str, Any]]:
    return sorted(
        (
            row
            for row in results.rows.values()
            if row.get("slowdown") == slowdown
            and row.get("planner") == planner
            and "step_seconds" in row
        ),
        key=lambda row: row["budget_bytes"],
    )


def _summary(results: Results, slowdown: float) -> dict[str, Any]:
    joint = {r["budget_bytes"]: r for r in _rows(results, slowdown, "joint")}
    alpa = {r["budget_bytes"]: r for r in _rows(results, slowdown, "alpa")}
    ratios = [row["step_seconds"] / joint[b]["step_seconds"] for b, row in alpa.items()]
    return {
        "largest_speed_up_over_alpa": max(ratios, default=None),
        "recomputed_units": {b: row["recomputed_units"] for b, row in joint.items()},
        "recompute_seconds": {b: row["recompute_seconds"] for b, row in joint.items()},
    }


def _draw(results: Results) -> None:
    slowdowns = [float(s) for s in _SLOWDOWNS.value if f"{float(s):g} done" in results.rows]
    figure, panels = plt.subplots(1, len(slowdowns) + 1, figsize=(3.5 * len(slowdowns) + 3.5, 3.2))
    for panel, slowdown in zip(panels, slowdowns, strict=False):
        free = results.rows[f"{slowdown:g} free"]["step_seconds"]
        for planner in PLANNERS:
            rows = _rows(results, slowdown, planner)
            colour, marker = STYLES[planner]
            budgets = [row["budget_bytes"] / 1e9 for row in rows]
            seconds = [row["step_seconds"] / free for row in rows]
            panel.plot(budgets, seconds, color=colour, marker=marker, label=planner)
        panel.set_title(f"links 1/{slowdown:g}")
        panel.set_xlabel("budget per device (GB)")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("time relative to alpa\nwithout a limit")
    panels[0].legend(fontsize=7)
    for slowdown in slowdowns:
        rows = _rows(results, slowdown, "joint")
        budgets = [row["budget_bytes"] / 1e9 for row in rows]
        again = [row["recomputed_units"] for row in rows]
        panels[-1].plot(budgets, again, marker="o", label=f"links 1/{slowdown:g}")
    panels[-1].set(title="joint: units recomputed", xlabel="budget per device (GB)")
    panels[-1].grid(alpha=0.3)
    panels[-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(results.path.with_suffix(".png"), dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    app.run(main)
