"""Curves of step time over budgets, and how they are drawn: one panel for each."""

from typing import Any

from experiments._mesh_run import PLANNERS
from experiments._setup import NO_LIMIT_BYTES, Results
from experiments.styles import STYLES


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
