"""Figure 3 of the paper: the decoder on (1, 4) with increasingly slow links.

For each slow-down of the links, the figure shows all planners over budgets, relative to "alpa"
without a limit under the same links, and the part of the step that "joint" spends on recomputation.
Budgets are shares of alpa's peak under fast links, the same for all.

    python -m benchmarks.paper.figure3
"""

from dataclasses import replace
from typing import Any

import matplotlib.pyplot as plt
from absl import app, flags

from benchmarks.paper._mesh_run import BASELINES, MeshRun
from benchmarks.paper._panels import draw_legend, draw_panel, points, rows_of
from benchmarks.paper._setup import (
    NO_LIMIT_BYTES,
    Results,
    begin,
    define_flags,
    planned_step,
    shares,
)
from kiwi.mesh import DeviceMesh, hardware

define_flags("figure3", seconds=5.0, shares=("1", "0.8", "0.6"))
_SLOWDOWNS = flags.DEFINE_list("slowdowns", ["1", "10", "100"], "Of the links' bandwidth.")
_LEAST = flags.DEFINE_bool("least", False, "Also look for each planner's smallest budget.")

_LEAST_BYTES = 24 * 10**8
"""The budget that decides which copies of operands the problem models."""


def main(_: list[str]) -> None:
    """Plans the missing rows, then draws the figure."""
    results = begin("figure3")
    step, arguments = planned_step("decoder")
    for slowdown in map(float, _SLOWDOWNS.value):
        what = _name(slowdown)
        if f"{what} done" not in results.rows:
            mesh, traced = _mesh(slowdown), step.traced(*arguments)
            seconds = flags.FLAGS.time_limit_seconds
            run = MeshRun(traced, mesh, _LEAST_BYTES, seconds, results, what)
            _plan(results, run, slowdown)
    _draw(results)


def _mesh(slowdown: float) -> DeviceMesh:
    entry = hardware(flags.FLAGS.profile)
    slower = entry.intra_link.bandwidth_bytes_per_second / slowdown
    link = replace(entry.intra_link, bandwidth_bytes_per_second=slower)
    return DeviceMesh.create((1, 4), replace(entry, intra_link=link))


def _plan(results: Results, run: MeshRun, slowdown: float) -> None:
    free = run.row("alpa", NO_LIMIT_BYTES)
    if "error" in free:
        raise RuntimeError(free["what"])
    budgets = [int(share * _fast_peak(results)) for share in shares()]
    for planner in BASELINES:
        run.baseline(planner, budgets, least=_LEAST.value)
    run.joint(budgets, least=_LEAST.value)
    results.add(f"{_name(slowdown)} done", _summary(results, slowdown))


def _fast_peak(results: Results) -> int:
    """Returns the peak of alpa without a limit under links at full bandwidth."""
    return results.rows[f"{_name(1.0)} alpa {NO_LIMIT_BYTES}"]["peak_bytes"]


def _name(slowdown: float) -> str:
    return f"links/{slowdown:g}"


def _summary(results: Results, slowdown: float) -> dict[str, Any]:
    what = _name(slowdown)
    joint, alpa = (dict(points(results, what, planner)) for planner in ("joint", "alpa"))
    rows = _plans(results, what)
    return {
        "largest_speed_up_over_alpa": max((alpa[b] / joint[b] for b in alpa), default=None),
        "smallest_feasible_bytes": {"alpa": min(alpa), "joint": min(joint)},
        "recomputed_units": {b: row["recomputed_units"] for b, row in rows},
        "recompute_seconds": {b: row["recompute_seconds"] for b, row in rows},
        "recomputed_share": {b: row["recompute_seconds"] / row["step_seconds"] for b, row in rows},
    }


def _plans(results: Results, what: str) -> list[tuple[int, dict[str, Any]]]:
    """Returns, for each requested budget, the row of the fastest plan of "joint" that fits."""
    joint_rows = [row for row in rows_of(results, what, "joint") if "step_seconds" in row]
    fast = _fast_peak(results)
    budgets = sorted(int(share * fast) for share in shares())
    fastest = []
    for budget in budgets:
        fits = [r for r in joint_rows if r["peak_bytes"] <= budget]
        if fits:
            fastest.append((budget, min(fits, key=lambda r: r["step_seconds"])))
    return fastest


def _draw(results: Results) -> None:
    slowdowns = [s for s in map(float, _SLOWDOWNS.value) if f"{_name(s)} done" in results.rows]
    size = (3.4 * (len(slowdowns) + 1), 3.6)
    figure, panels = plt.subplots(1, len(slowdowns) + 1, figsize=size)
    for panel, slowdown in zip(panels, slowdowns, strict=False):
        draw_panel(panel, results, _name(slowdown))
        panel.set_title("links as they are" if slowdown == 1 else f"links at 1/{slowdown:g}")
        panel.set(xlabel="budget per device (GB)", xlim=(None, 1.05 * _fast_peak(results) / 1e9))
    panels[0].set_ylabel("estimated time, relative to\nalpa without a limit")
    for slowdown in slowdowns:
        rows = _plans(results, _name(slowdown))
        budgets = [budget / 1e9 for budget, _ in rows]
        recompute_milliseconds = [1e3 * row["recompute_seconds"] for _, row in rows]
        label = "links as they are" if slowdown == 1 else f"links at 1/{slowdown:g}"
        panels[-1].plot(budgets, recompute_milliseconds, marker="o", label=label)
    panels[-1].set(title="joint: recomputation (ms)", xlabel="budget per device (GB)")
    panels[-1].grid(alpha=0.3)
    panels[-1].legend(fontsize=8)
    draw_legend(figure, panels[0])
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    figure.savefig(results.path.with_suffix(".png"), dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    app.run(main)
