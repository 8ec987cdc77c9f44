"""Curves of step time over budgets, and their panels."""

from typing import Any

from benchmarks.paper._mesh_run import BASELINES, PLANNERS
from benchmarks.paper._setup import NO_LIMIT_BYTES, Results
from benchmarks.paper.styles import STYLES


def rows_of(results: Results, what: str, planner: str | None = None) -> list[dict[str, Any]]:
    """Returns the rows of one panel, with a plan or with an error, of one planner or of all."""
    rows = [r for key, r in results.rows.items() if key.startswith(f"{what} ") and "planner" in r]
    return [row for row in rows if planner in (None, row["planner"])]


def asked_budgets(rows: list[dict[str, Any]]) -> set[int]:
    """Returns the requested budgets and the peaks of the plans. A curve changes only at these."""
    budgets = {row["budget_bytes"] for row in rows}
    budgets |= {row["peak_bytes"] for row in rows if "peak_bytes" in row}
    return {budget for budget in budgets if 1 < budget < NO_LIMIT_BYTES}


def points(results: Results, what: str, planner: str) -> list[tuple[int, float]]:
    """Returns (budget bytes, step seconds) of one planner, with the fastest of its plans that fit.

    The budgets are the budgets of all planners.
    """
    rows = rows_of(results, what)
    planned_rows = [row for row in rows_of(results, what, planner) if "step_seconds" in row]
    budgets = asked_budgets(rows)
    curve = []
    for budget in sorted(budgets):
        fits = [row["step_seconds"] for row in planned_rows if row["peak_bytes"] <= budget]
        if fits:
            curve.append((budget, min(fits)))
    return curve


def summary(results: Results, what: str) -> dict[str, Any]:
    """Returns the smallest feasible budgets, joint's largest speed-ups, and whether joint is ever
    slower.

    Speed-ups over a planner are taken at the planner's requested budgets and at the peaks of its
    own plans. At other budgets another search could find a lower curve.
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
    budgets = asked_budgets(rows_of(results, what, planner))
    curve = dict(points(results, what, planner))
    return {b: curve[b] / joint[b] for b in budgets if b in curve and b in joint}


def draw_panel(panel: Any, results: Results, what: str) -> None:
    """Draws each planner's time over budgets, relative to "alpa" without a limit."""
    panel.set_title(what)
    free = results.rows.get(f"{what} alpa {NO_LIMIT_BYTES}")
    if free is None:
        panel.set_axis_off()
        return
    for planner in PLANNERS:
        curve = points(results, what, planner)
        if not curve:
            continue
        colour, marker = STYLES[planner]
        panel.plot(
            [budget / 1e9 for budget, _ in curve],
            [seconds / free["step_seconds"] for _, seconds in curve],
            label=planner,
            color=colour,
            marker=marker,
            markersize=5 if planner == "joint" else 3,
            drawstyle="steps-post",
            linewidth=1.8 if planner == "joint" else 1.1,
        )
    panel.grid(alpha=0.3)


def draw_legend(figure: Any, panel: Any) -> None:
    """Draws one legend for all panels, above them."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(PLANNERS), frameon=False)
