"""Schedules sought again under a lower limit, while the compiled program is over the budget."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.errors import BudgetNotMetError, InfeasibleBudgetError
from kiwi.planners import schedule_loop as tightening
from kiwi.plans.origin import Origin

BUDGET = 2**30
WASTE = 10 * 2**20
"""What the compiler of these tests holds beyond what anybody could know."""


@pytest.fixture(scope="module")
def base():
    shapes = [jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 3

    def step(weights):
        return jax.grad(lambda ws: jnp.sum(jnp.tanh(ws[0] @ ws[1]) @ ws[2]))(weights)

    return kiwi.plan(step, shapes, mesh_shape=(1,), memory_budget=BUDGET, planner="alpa")


@pytest.fixture
def asked(base, monkeypatch):
    """The limits asked for, and a search whose plans fill them; compiled, they need more."""
    limits: list[int] = []

    def plan_within(limit_bytes):
        limits.append(limit_bytes)
        if limit_bytes < 0.9 * BUDGET:
            raise InfeasibleBudgetError("Nothing is so small.")
        estimate = replace(base.estimate, peak_bytes=limit_bytes)
        return replace(base, estimate=estimate, memory_budget_bytes=limits[0])

    def compile_for(target, step):
        assert target == "cpu"
        return replace(base.compiled, peak_bytes=limits[-1] + WASTE)

    monkeypatch.setattr(tightening, "compile_for", compile_for)
    return limits, plan_within


def _settings(base, **changes):
    assert isinstance(base.origin, Origin)
    return replace(base.origin.settings, **changes)


def test_the_limit_falls_by_the_excess(base, asked):
    limits, plan_within = asked
    plan = tightening.tightened(plan_within, _settings(base, verify="cpu"), cause="")
    assert limits == [BUDGET, BUDGET - WASTE]
    assert plan.fits and plan.compiled.peak_bytes == BUDGET
    assert [r.correction_bytes for r in plan.rounds] == [0, WASTE]
    assert [r.compiled_peak_bytes for r in plan.rounds] == [BUDGET + WASTE, BUDGET]


def test_a_limit_that_is_too_low_gives_way_to_one_between(base, asked):
    limits, plan_within = asked
    budget = BUDGET - 8 * WASTE
    least = budget - WASTE // 2

    def refusing(limit_bytes):
        if limit_bytes < least:
            limits.append(limit_bytes)
            raise InfeasibleBudgetError("Too small.", least_peak_bytes=least)
        return plan_within(limit_bytes)

    settings = _settings(base, verify="cpu", memory_budget_bytes=budget)
    with pytest.raises(BudgetNotMetError) as caught:
        tightening.tightened(refusing, settings, cause="")
    assert limits[:3] == [budget, budget - WASTE, (least + budget) // 2]
    assert caught.value.plan.rounds[-1].limit_bytes == limits[2]


def test_where_no_lower_limit_is_feasible_other_plans_are_tried(base, asked, monkeypatch):
    limits, plan_within = asked

    def compile_for(target, step):
        fourth = len(limits) == 4
        return replace(base.compiled, peak_bytes=limits[-1] + (0 if fourth else WASTE))

    monkeypatch.setattr(tightening, "compile_for", compile_for)
    budget = int(0.905 * BUDGET)
    settings = _settings(base, verify="cpu", memory_budget_bytes=budget)
    plan = tightening.tightened(plan_within, settings, cause="", varies=True)
    assert limits == [budget, budget - WASTE, budget, budget - WASTE // 2]
    assert plan.fits and len(plan.rounds) == 3


@pytest.mark.parametrize(("least", "searches"), [(1.001, 3), (1.1, 1)])
def test_a_budget_refused_by_a_hair_is_searched_again(base, asked, least, searches):
    _, plan_within = asked
    budget, found = 0.95 * BUDGET, []

    def found_late(limit_bytes):
        found.append(limit_bytes)
        if len(found) < 3:
            raise InfeasibleBudgetError("Not found.", least_peak_bytes=int(least * budget))
        plan = plan_within(limit_bytes - WASTE)
        return replace(plan, memory_budget_bytes=int(budget))

    settings = _settings(base, verify="cpu", memory_budget_bytes=int(budget))
    if searches == 1:
        with pytest.raises(InfeasibleBudgetError):
            tightening.tightened(found_late, settings, cause="", varies=True)
    else:
        assert tightening.tightened(found_late, settings, cause="", varies=True).fits
    assert found == [int(budget)] * searches


def test_another_order_comes_before_a_lower_limit(base, asked):
    limits, plan_within = asked
    over, orders = [], []

    def reordered(plan, limit_bytes, over_bytes):
        over.append((limit_bytes, over_bytes))
        order = replace(plan, compiled=None)
        orders.append(order)
        return order

    def compile_for(target, step):
        waste = WASTE // 2 ** len(orders) if len(orders) < 3 else 0
        return replace(base.compiled, peak_bytes=limits[-1] + waste)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tightening, "compile_for", compile_for)
        settings = _settings(base, verify="cpu", time_limit_seconds=1e9)
        plan = tightening.tightened(plan_within, settings, cause="", reordered=reordered)
    assert limits == [BUDGET]
    assert over == [(BUDGET, WASTE), (BUDGET, WASTE // 2), (BUDGET, WASTE // 4)]
    assert plan.fits and plan.compiled.peak_bytes == BUDGET
    assert [r.compiled_peak_bytes - BUDGET for r in plan.rounds] == [
        WASTE,
        WASTE // 2,
        WASTE // 4,
        0,
    ]
    assert [r.solve_seconds for r in plan.rounds[1:]] == [0.0] * 3


def test_orders_end_with_the_time_for_compiling_and_where_there_is_none(base, asked):
    limits, plan_within = asked
    for seconds, found, asked_for in ((1e-9, base, 0), (1e9, None, 1)):
        limits.clear()
        calls = []

        def reordered(plan, limit_bytes, over_bytes, found=found, calls=calls):
            calls.append(limit_bytes)
            return found

        settings = _settings(base, verify="cpu", time_limit_seconds=seconds)
        plan = tightening.tightened(plan_within, settings, cause="", reordered=reordered)
        assert limits == [BUDGET, BUDGET - WASTE] and plan.fits
        assert len(calls) == asked_for


def _with_waste(base, monkeypatch, waste):
    """A search whose plans fill their limits, the faster the larger, and the waste of each."""
    limits = []

    def plan_within(limit_bytes):
        limits.append(limit_bytes)
        seconds = base.estimate.step_seconds * (2 - limit_bytes / BUDGET)
        estimate = replace(base.estimate, peak_bytes=limit_bytes, step_seconds=seconds)
        return replace(base, estimate=estimate, memory_budget_bytes=BUDGET)

    def compile_for(target, step):
        return replace(base.compiled, peak_bytes=limits[-1] + waste[len(limits) - 1])

    monkeypatch.setattr(tightening, "compile_for", compile_for)
    return limits, plan_within


def test_what_was_taken_off_too_much_is_taken_back(base, monkeypatch):
    limits, plan_within = _with_waste(base, monkeypatch, [4 * WASTE, 0, WASTE, WASTE])
    plan = tightening.tightened(plan_within, _settings(base, verify="cpu"), cause="")
    # The second leaves 4 of the budget, which the first exceeds: a limit between, then 1 is left.
    assert [(BUDGET - limit) // WASTE for limit in limits] == [0, 4, 2, 1]
    assert plan.fits and plan.compiled.peak_bytes == BUDGET
    assert len(plan.rounds) == 4


def test_the_fastest_plan_within_the_budget_is_kept(base, monkeypatch):
    limits, plan_within = _with_waste(base, monkeypatch, [4 * WASTE, 0, 3 * WASTE, 9 * WASTE])
    plan = tightening.tightened(plan_within, _settings(base, verify="cpu"), cause="")
    assert [(BUDGET - limit) // WASTE for limit in limits] == [0, 4, 2, 3]
    assert plan.fits and plan.compiled.peak_bytes == BUDGET - 4 * WASTE
    assert len(plan.rounds) == 4


def test_a_plan_that_is_no_faster_is_not_compiled(base, asked, monkeypatch):
    limits, plan_within = asked

    def compile_for(target, step):
        return replace(
            base.compiled, peak_bytes=limits[-1] + (2 * WASTE if len(limits) == 1 else 0)
        )

    monkeypatch.setattr(tightening, "compile_for", compile_for)
    plan = tightening.tightened(plan_within, _settings(base, verify="cpu"), cause="")
    assert len(limits) == 3 and len(plan.rounds) == 2 and plan.fits


def test_without_a_check_the_first_plan_is_the_answer(base, asked):
    limits, plan_within = asked
    plan = tightening.tightened(plan_within, _settings(base, verify=None), cause="")
    assert limits == [BUDGET] and plan.compiled is None and len(plan.rounds) == 1


def test_the_nearest_plan_comes_with_the_error(base, asked):
    _, plan_within = asked
    budget = int(0.905 * BUDGET)
    settings = _settings(base, verify="cpu", memory_budget_bytes=budget)
    with pytest.raises(BudgetNotMetError, match="No schedule met") as caught:
        tightening.tightened(plan_within, settings, cause="The compiler wastes.", instead=", or no")
    error = caught.value
    assert error.plan.peak_bytes == error.least_peak_bytes == budget + WASTE
    assert error.cause == "The compiler wastes." and error.suggestion.endswith("meets, or no.")


def test_a_budget_that_no_schedule_meets_is_the_searchs_own_error(base, asked):
    with pytest.raises(InfeasibleBudgetError, match="so small"):
        settings = _settings(base, memory_budget_bytes=BUDGET // 2)
        tightening.tightened(asked[1], settings, cause="")
