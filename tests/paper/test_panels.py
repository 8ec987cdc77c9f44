"""The figures' summaries of their rows: curves, speed-ups, and whether "joint" is ever slower."""

import pytest

from benchmarks.paper._panels import asked_budgets, points, rows_of, summary
from benchmarks.paper._setup import NO_LIMIT_BYTES, Results

GB = 10**9


def _row(planner, budget, seconds=None, peak=None):
    row = {"planner": planner, "budget_bytes": budget}
    if seconds is None:
        return {**row, "error": "InfeasibleBudgetError"}
    return {**row, "step_seconds": seconds, "peak_bytes": peak}


@pytest.fixture
def results(tmp_path):
    """Returns a panel of two planners, and a row of another panel."""
    found = Results(str(tmp_path / "figure.json"), "python -m benchmarks.paper.test")
    found.add("a panel alpa free", _row("alpa", NO_LIMIT_BYTES, 1.0, 10 * GB))
    found.add("a panel alpa 8", _row("alpa", 8 * GB, 2.0, 7 * GB))
    found.add("a panel alpa 6", _row("alpa", 6 * GB))
    found.add("a panel joint 10", _row("joint", 10 * GB, 1.0, 9 * GB))
    found.add("a panel joint 7", _row("joint", 7 * GB, 1.6, 5 * GB))
    found.add("a panel done", {"joint_never_slower": True})
    found.add("another panel alpa 3", _row("alpa", 3 * GB, 0.1, 3 * GB))
    return found


def test_a_curve_takes_the_fastest_plan_that_fits(results):
    assert points(results, "a panel", "alpa") == [
        (7 * GB, 2.0),
        (8 * GB, 2.0),
        (9 * GB, 2.0),
        (10 * GB, 1.0),
    ]
    joint = dict(points(results, "a panel", "joint"))
    assert joint == {5 * GB: 1.6, 6 * GB: 1.6, 7 * GB: 1.6, 8 * GB: 1.6, 9 * GB: 1.0, 10 * GB: 1.0}


def test_a_panel_has_rows_of_its_own(results):
    assert [r["budget_bytes"] for r in rows_of(results, "another panel")] == [3 * GB]
    assert asked_budgets(rows_of(results, "another panel")) == {3 * GB}
    assert NO_LIMIT_BYTES not in asked_budgets(rows_of(results, "a panel"))


def test_speed_ups_are_taken_where_a_planner_was_asked(results):
    found = summary(results, "a panel")
    # At 9 GB, the peak of a plan of joint, alpa was not asked: 2.0 / 1.0 does not count.
    assert found["largest_speed_up"]["alpa"] == pytest.approx(2.0 / 1.6)
    assert found["largest_speed_up_at_bytes"]["alpa"] in (7 * GB, 8 * GB)
    assert found["smallest_feasible_bytes"] == {
        "alpa": 7 * GB,
        "alpa+dots": None,
        "alpa+megatron": None,
        "two-pass": None,
        "joint": 5 * GB,
    }
    assert found["joint_never_slower"]


@pytest.mark.parametrize("seconds, peak", [(1.5, 7 * GB), (9.0, 4 * GB)])
def test_a_baseline_that_is_faster_or_smaller_anywhere_is_seen(results, seconds, peak):
    results.add("a panel two-pass 7", _row("two-pass", 7 * GB, seconds, peak))
    assert not summary(results, "a panel")["joint_never_slower"]


def test_results_go_on_where_they_stopped(results):
    again = Results(str(results.path), "another command")
    assert again.rows == results.rows
    assert results.path.read_text().count("benchmarks.paper.test") == 1
    again.add("new", {})
    assert "another command" in results.path.read_text()
    assert list(Results(str(results.path), "").rows) == [*results.rows, "new"]
