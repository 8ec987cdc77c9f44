"""Sweeps: warm starts, bounds that hold, the Pareto front."""

import itertools

import pytest

import kiwi
import kiwi.sweep as sweep_module
from examples import mlp
from kiwi import errors
from kiwi.sweep import Sweep, SweepPoint, sweep, sweep_budgets
from tests.helpers.on_cpu import ON_CPU

CONFIG = mlp.MlpConfig(layers=2, width=32, batch=64)
ARGS = (mlp.abstract_state(CONFIG), mlp.abstract_batch(CONFIG))


def planned(**options):
    step = mlp.make_train_step(CONFIG)
    options = {"mesh_shape": (2, 4), "verify": None, "time_limit_seconds": 4.0, **options}
    return kiwi.jit(step, donate_argnums=0, **options)


@pytest.fixture(scope="module")
def chain():
    free = planned().plan(*ARGS).estimate.peak_bytes
    budgets = [int(share * free) for share in (0.4, 0.8, 0.9, 1.5, 2.0)]
    return budgets, sweep_budgets(planned(gap=5e-3), budgets, ARGS, {})


def test_points_come_in_the_order_of_budgets(chain):
    budgets, points = chain
    assert [p.memory_budget_bytes for p in points] == budgets


def test_plans_fit_their_budgets_and_larger_budgets_are_no_slower(chain):
    found = [p for p in chain[1] if p.document is not None]
    assert len(found) >= 3
    for point in found:
        assert point.peak_bytes <= point.memory_budget_bytes
    for tight, loose in itertools.pairwise(found):
        assert loose.step_seconds <= tight.step_seconds * (1 + 1e-9)


def test_a_plan_is_used_again_and_a_search_starts_warm(chain):
    hows = [p.how for p in chain[1]]
    assert hows[-1] == "solved" and hows[-2] == "same as a larger budget"
    assert any(how in ("warm start", "same as a smaller budget") for how in hows)


def test_compiled_peaks_and_times_are_in_the_order_of_budgets():
    free = planned(profile=ON_CPU, verify="cpu").plan(*ARGS).peak_bytes
    budgets = [int(share * free) for share in (0.7, 0.9, 1.2)]
    found = [
        p
        for p in sweep_budgets(planned(profile=ON_CPU, verify="cpu"), budgets, ARGS, {})
        if p.document
    ]
    assert len(found) >= 3
    for tight, loose in itertools.pairwise(found):
        assert tight.compiled_peak_bytes <= tight.memory_budget_bytes
        assert tight.compiled_peak_bytes <= loose.compiled_peak_bytes
        assert tight.step_seconds >= loose.step_seconds


def test_a_plan_that_missed_its_budget_serves_a_larger_one(monkeypatch):
    """A refused plan is known to need its peak, whatever was asked for."""
    chain_of = sweep_module._Chain
    plan_one = chain_of._solved

    def refuse_tightest(self, budget):
        found, how = plan_one(self, budget)
        if budget == min(budgets):
            raise errors.BudgetNotMetError("missed", plan=found, least_peak_bytes=found.peak_bytes)
        return found, how

    free = planned().plan(*ARGS).peak_bytes
    budgets = [int(0.8 * free), 2 * free]
    monkeypatch.setattr(chain_of, "_solved", refuse_tightest)
    tight, loose = sweep_budgets(planned(), budgets, ARGS, {})
    assert tight.how == "same as a smaller budget" and tight.error == ""
    assert tight.peak_bytes <= budgets[0] and loose.how == "solved"


def test_bounds_hold_for_every_tighter_budget(chain):
    found = [p for p in chain[1] if p.document is not None]
    for tight, loose in itertools.combinations_with_replacement(found, 2):
        objective = tight.document["bounds"]["objective_seconds"]  # before copies are kept
        assert loose.document["bounds"]["bound_seconds"] <= objective * (1 + 1e-9)
        assert tight.step_seconds <= objective * (1 + 1e-9)


def test_documents_of_a_sweep_can_be_applied(chain, tmp_path):
    point = chain[1][-1]
    saved = kiwi.SavedPlan(point.document)
    again = saved.apply(mlp.make_train_step(CONFIG)).plan(*ARGS)
    assert again.estimate.step_seconds == point.step_seconds


def test_a_budget_that_nothing_fits_says_so_in_its_point():
    points = sweep_budgets(planned(), [1024, 2**30], ARGS, {})
    assert points[0].document is None and "1" in points[0].error
    assert points[1].document is not None


def point(devices, peak, step, budget=1):
    content = {"estimate": {"step_seconds": step, "peak_bytes": peak}}
    return SweepPoint((devices,), budget, 0.0, document=content)


def test_the_front_has_what_nothing_beats():
    fast, small, both = point(8, 20, 1.0), point(8, 10, 2.0), point(8, 20, 2.0)
    fewer, failed = point(4, 20, 3.0), SweepPoint((8,), 7, 0.0, error="no")
    found = Sweep((fast, small, both, fewer, failed), 0.0)
    assert found.pareto == (fast, small, fewer)
    assert found.best == fast


def test_of_equal_plans_the_smallest_budget_counts():
    tight, loose = point(8, 10, 1.0, budget=10), point(8, 10, 1.0, budget=20)
    assert Sweep((loose, tight), 0.0).pareto == (tight,)


def test_a_sweep_without_processes_is_refused():
    with pytest.raises(errors.InvalidArgumentError, match="jobs=0"):
        sweep("train.py:step", [(8,)], ["1GiB"], jobs=0)
