"""The replay benchmark: its figures of plans, tables and runs."""

from dataclasses import replace

import jax
import pytest

import kiwi
from benchmarks.replay.measure import RECOMPUTES_ALL, Candidate, replay
from benchmarks.replay.models import Model
from benchmarks.replay.report import markdown, plot
from benchmarks.replay.summary import orders, rows, spearman
from examples import mlp
from kiwi.profiling.measure import Bench, Timing

TINY = Model(mlp, mlp.SIZES["tiny"], shares=(0.5,), recomputes_all=True)


def test_spearman():
    assert spearman([1, 2, 3, 4, 5], [10, 20, 30, 40, 50]) == 1
    assert spearman([1, 2, 3, 4, 5], [5, 4, 3, 2, 1]) == -1
    # The last two change places: d = 1 twice.
    assert spearman([1, 2, 3, 4, 5], [1, 2, 3, 5, 4]) == pytest.approx(1 - 6 * 2 / (5 * 24))


@pytest.fixture(scope="module")
def outcome():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bench, "time", lambda *_: Timing(1e-4, 0.1))
        return replay(TINY, rounds=2, runs=2, repetitions=1)


def test_a_model_is_planned_recorded_and_run(outcome, tmp_path):
    names = [c.name for c in outcome.candidates]
    assert names[0] == "no budget" and names[-1] == RECOMPUTES_ALL and len(names) == 3
    assert all([len(r) for r in c.rounds] == [4, 4] for c in outcome.candidates)
    found = rows("mlp", (1, 1), outcome)
    assert all(row["predicted_seconds"] > 0 and row["measured_seconds"] > 0 for row in found)
    assert len(found[0]["round_ratios"]) == 2
    results = {
        "environment": dict.fromkeys(
            ("command", "date", "cores", "jax", "python", "kiwi", "rounds"), "-"
        ),
        "spearman": orders(found),
        "rows": found,
    }
    assert orders(found) == {}  # of three plans there is little to say
    assert "| mlp | 1x1 | no budget |" in markdown(results)
    plot(found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_a_plan_is_priced_by_another_table(outcome):
    candidate, table = outcome.candidates[0], outcome.table
    before = candidate.predicted_seconds(candidate.plan.mesh.table)
    assert before == pytest.approx(candidate.plan.estimate.step_seconds)
    again = candidate.predicted_seconds(table)
    slow = tuple(replace(e, seconds=3 * e.seconds) for e in table.operators)
    assert candidate.predicted_seconds(replace(table, operators=slow)) > 2 * again


def test_the_median_is_of_all_runs():
    x = jax.ShapeDtypeStruct((8,), "float32")
    plan = kiwi.plan(lambda x: x.sum(), x, mesh_shape=(1,), verify=None)
    assert Candidate("any", plan, [[1.0, 5.0], [2.0]]).measured_seconds == 2.0
