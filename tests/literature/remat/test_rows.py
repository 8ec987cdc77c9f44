"""Rows of the benchmarks of planners: figures simulated again, and runs that can be resumed."""

import io
from dataclasses import replace

from rich.console import Console

from benchmarks.remat.jax_models import budget_of
from benchmarks.remat.row import ClosedLoop, Results, Row, overview, solved, table
from kiwi.errors import InfeasibleBudgetError
from kiwi.literature.remat import Value, largest_working_set, order_peak_bytes

from .graphs import training_chain

GRAPH = training_chain(4)


def _text(shown):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text()


def test_a_row_has_the_figures_of_its_schedule():
    budget = order_peak_bytes(GRAPH)
    row, result = solved(Row("chain", 8, 100, "keep-all", 1.0), GRAPH, budget)
    assert result.schedule.steps == GRAPH.order
    assert (row.increase_percent, row.peak_percent, row.is_proven) == (0.0, 100.0, True)


def test_a_budget_that_is_not_met_is_a_row_with_what_is_known():
    bound = largest_working_set(GRAPH).size_bytes
    row, error = solved(Row("chain", 8, 1, "keep-all", 0.1), GRAPH, bound - 1)
    assert isinstance(error, InfeasibleBudgetError)
    assert row.increase_percent is None and row.seconds > 0
    assert f"least known {error.least_peak_bytes}, bound {bound} bytes" in _text(table([row]))


def test_rows_that_are_there_are_not_made_again(tmp_path):
    made = []

    def run(row):
        made.append(row.key)
        loop = ClosedLoop(False, 2, 1.0, 2.0, 1.1, 3.0)
        return replace(row, increase_percent=4.0, seconds=1.0, budget_mib=1.0, closed_loop=loop)

    path = tmp_path / "rows.json"
    wanted = [Row(name, 8, 80, "remat", 1.0) for name in ("b", "a")]
    first = Results(path, "once", ["b", "a"]).make(wanted[:1], run)
    both = Results(path, "twice", ["b", "a"]).make(wanted, run)
    assert made == [each.key for each in wanted]
    assert both[0] == first[0]
    text = path.with_suffix(".txt").read_text()
    assert "nearest 10.0 % over" in text and "1.0 / 110! / 3" in text
    assert text.index("│ b") < text.index("│ a")
    assert "increase %" in _text(overview(both))


def test_budgets_are_shares_but_lie_above_the_largest_working_set():
    peak, least = order_peak_bytes(GRAPH), largest_working_set(GRAPH).size_bytes
    assert GRAPH.resident_bytes == 0
    assert budget_of(GRAPH, 100) == (peak, None)
    budget, raised = budget_of(GRAPH, 4)
    assert budget == least + (peak - least) // 100 > peak // 25
    assert raised == 100 * budget / peak
    fenced = replace(GRAPH, values=(*GRAPH.values, Value("fences", 64)))
    assert budget_of(fenced, 4, 64) == (budget, raised)
    row = Row("chain", 8, 4, "remat", 1.0, budget_mib=1.0, raised_percent=raised)
    assert f"4 → {raised:.0f}" in _text(table([row]))
