"""Curves of step time over budgets, and how they are drawn: one panel for each."""

from typing import Any

from benchmarks.paper._mesh_run import BASELINES, PLANNERS
from benchmarks.paper._setup import NO_LIMIT_BYTES, Results
from benchmarks.paper.styles import STYLES


def rows_of(results: Results, what: str, planner: str | None = None) -> list[dict[str, Any]]:
    """The rows of one panel, of one planner or of all, with a plan or without."""
    rows = [r for key, r in results.rows.items() if key.startswith(f"{what} ") and "planner" in r]
    return [row for row in rows if planner in (None, row["planner"])]


def asked_budgets(rows: list[dict[str, Any]]) -> set[int]:
    """The budgets that were asked for, and the peaks of the plans: a curve changes there alone."""
    asked = {row["budget_bytes"] for row in rows}
    asked |= {row["peak_bytes"] for row in rows if "peak_bytes" in row}
    return {budget for budget in asked if 1 < budget < NO_LIMIT_BYTES}


def points(results: Results, what: str, planner: str) -> list[tuple[int, float]]:
    """(budget bytes, step seconds) of one planner: the fastest plan of all that fit.

    Budgets are those of all planners.
    """
    rows = rows_of(results, what)
    own = [row for row in rows_of(results, what, planner) if "step_seconds" in row]
    budgets = asked_budgets(rows)
    found = []
    for budget in sorted(budgets):
        fits = [row["step_seconds"] for row in own if row["peak_bytes"] <= budget]
        if fits:
            found.append((budget, min(fits)))
    return found


def summary(results: Results, what: str) -> dict[str, Any]:
    """Smallest feasible budgets, joint's largest speed-ups, and whether it ever loses.

    Speed-ups over a planner are taken at the budgets that it was asked for and at the peaks of its
    own plans: elsewhere its curve might be lower with another search.
    """
    curves = {planner: dict(points(results, what, planner)) for planner in PLANNERS}
    joint = curves["joint"]
    faster = {planner: _speed_ups(results, what, planner, joint) for planner in BASELINES}
    return {
        "smallest_feasible_bytes": {p: min(c, default=None) for p, c in curves.items()},
        "largest_speed_up": {p: max(f.values(), default=None) for p, f in faster.items()},
        "largest_speed_up_at_bytes": {p: max(f, key=f.__getitem__) for p, f in faster.items() if f},
        "joint_never_slower": all(
            b in joint and joint[b] <= seconds * (1 + 1e-9)
            for curve in curves.values()
            for b, seconds in curve.items()
        ),
    }


def _speed_ups(
    results: Results, what: str, planner: str, joint: dict[int, float]
) -> dict[int, float]:
    own = asked_budgets(rows_of(results, what, planner))
    curve = dict(points(results, what, planner))
    return {b: curve[b] / joint[b] for b in own if b in curve and b in joint}


def draw_panel(panel: Any, results: Results, what: str) -> None:
    """Each planner's time over budgets, relative to "alpa" without a limit."""
    panel.set_title(what)
    free = results.rows.get(f"{what} alpa {NO_LIMIT_BYTES}")
    if free is None:
        panel.set_axis_off()
        return
    for planner in PLANNERS:
        found = points(results, what, planner)
        if not found:
            continue
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


def draw_legend(figure: Any, panel: Any) -> None:
    """One legend for all panels, above them."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(PLANNERS), frameon=False)
