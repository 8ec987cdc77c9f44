"""The benchmark of plans on busy machines: the table of its runs."""

from benchmarks.anywhere.__main__ import RUNS, table

ROW = {
    "share": 0.8,
    "budget_bytes": 3 * 2**20,
    "decisions": "a",
    "step_seconds": 0.5,
    "is_repeatable": True,
    "error": "",
    "seconds": 2.0,
}


def line_of(**changes) -> str:
    """Returns the line of a step whose runs are equal except for the given changes."""
    rows = {
        f"mlp {how}": {"commit": "c", "rows": [{**ROW, **changes.get(how, {})}]} for how in RUNS
    }
    return list(table(rows))[-1]


def test_plans_that_differ_are_told():
    assert "| 3 (80%) | identical | 500.00 | +0.00% |" in line_of()
    for how in ("beside", "slowed"):
        assert "DIFFERENT" in line_of(**{how: {"decisions": "b"}})
        assert "DIFFERENT" in line_of(**{how: {"is_repeatable": False}})
    assert "-1.00%" in line_of(thorough={"step_seconds": 0.495, "decisions": "c"})


def test_runs_that_are_missing_are_told():
    rows = {f"mlp {how}": {"commit": "c", "rows": [ROW]} for how in RUNS[:2]}
    line = list(table(rows))[-1]
    assert "| identical in 2 runs | 500.00 | - | 2.0 | 2.0 | - |" in line
    rows["mlp beside"]["rows"] = [{**ROW, "decisions": "b"}]
    assert "DIFFERENT" in list(table(rows))[-1]
    del rows["mlp alone"]
    assert list(table(rows))[-1].startswith("| ---")
