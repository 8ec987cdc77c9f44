"""The closed loop: compiled programs meet their budgets, or an error names the nearest budget that
is met."""

import functools
from dataclasses import replace
from functools import partial

import pytest

import kiwi
from examples import mlp
from kiwi.campaign import shares
from kiwi.campaign.problem_search import ProblemSearch, late_part
from kiwi.campaign.refusals import raised_limits
from kiwi.campaign.tools import Tools
from kiwi.planners.registry import planner_named
from kiwi.plans.memory_report import unit_at_peak
from kiwi.problem.solved import Start
from kiwi.solver.effort import Allowance
from tests.helpers.on_cpu import ON_CPU

CONFIG = mlp.MlpConfig(layers=4, width=64, batch=2048)


@functools.cache
def plan_under(budget, *, verify="cpu"):
    return kiwi.plan(
        mlp.make_train_step(CONFIG),
        mlp.abstract_state(CONFIG),
        mlp.abstract_batch(CONFIG),
        mesh_shape=(1,),
        profile=ON_CPU,
        memory_budget=budget,
        donate_argnums=0,
        time_limit_seconds=10,
        verify=verify,
    )


@functools.cache
def free_peak():
    return plan_under("64GiB").compiled.peak_bytes


@pytest.mark.parametrize("share", [0.9, 0.75, 0.6])
def test_a_returned_plan_meets_its_budget_as_compiled(share):
    plan = plan_under(int(share * free_peak()))
    assert plan.fits and plan.compiled.peak_bytes <= plan.memory_budget_bytes
    assert plan.rounds[-1].compiled_peak_bytes == plan.compiled.peak_bytes
    assert plan.rounds[-1].predicted_peak_bytes == plan.estimate.peak_bytes


def test_the_prediction_is_close_to_the_compiled_program():
    for share in (0.9, 0.75, 0.6):
        plan = plan_under(int(share * free_peak()))
        assert abs(plan.estimate.peak_bytes / plan.compiled.peak_bytes - 1) <= 0.15


def test_tighter_budgets_cost_time():
    seconds = [
        plan_under(int(share * free_peak())).estimate.step_seconds for share in (0.9, 0.75, 0.6)
    ]
    assert seconds == sorted(seconds)


def test_a_budget_that_nothing_meets_is_refused_with_the_nearest():
    """The least that plans need as predicted is less than what compiles."""
    with pytest.raises(kiwi.errors.InfeasibleBudgetError) as refused:
        plan_under(int(0.1 * free_peak()))
    least = refused.value.least_peak_bytes
    assert least > int(0.1 * free_peak())
    plan = plan_under(int(1.05 * least))
    assert plan.fits


def test_a_step_whose_check_takes_long_is_planned_with_a_little_room(monkeypatch):
    budget = int(0.7 * free_peak())
    monkeypatch.setattr(shares, "LONG_STEP", 1)
    plan = plan_under.__wrapped__(budget)
    assert plan.rounds[0].limit_bytes == int(shares.LONG_STEP_AIM * budget)
    assert plan.fits
    # Where nothing is found with that room, the whole budget is tried.
    monkeypatch.setattr(shares, "LONG_STEP_AIM", 0.05)
    assert plan_under.__wrapped__(budget).rounds[0].limit_bytes == budget


def test_a_refusal_carries_the_nearest_plan(monkeypatch):
    """A compiler that needs 10 MiB more than anybody could know refuses every budget."""
    from dataclasses import replace

    from kiwi.campaign import tools
    from kiwi.xla import compilers

    compile_for = compilers.compile_for

    def wasteful(target, step):
        compiled = compile_for(target, step)
        more = compiled.peak_bytes + 10 * 2**20
        return replace(compiled, peak_bytes=more, memory=None)

    monkeypatch.setattr(tools, "begin_for", lambda *of: partial(wasteful, *of))
    budget = int(0.55 * free_peak())
    with pytest.raises(kiwi.errors.BudgetNotMetError) as refused:
        plan_under.__wrapped__(budget)
    nearest = refused.value.plan
    assert nearest.compiled.peak_bytes == refused.value.least_peak_bytes > budget
    assert str(budget) not in refused.value.suggestion
    assert len(nearest.rounds) >= 1 and not nearest.fits


def test_where_no_plan_is_left_the_limit_is_lowered_by_less(monkeypatch):
    """The first program needs so much more that no plan is below; the others need no more."""
    from dataclasses import replace

    from kiwi.campaign import tools
    from kiwi.xla import compilers

    compile_for, more = compilers.compile_for, [int(0.45 * free_peak())]

    def wasteful_once(target, step):
        compiled = compile_for(target, step)
        peak = compiled.peak_bytes + (more.pop() if more else 0)
        return replace(compiled, peak_bytes=peak, memory=None)

    monkeypatch.setattr(
        tools, "begin_for", lambda target, step: partial(wasteful_once, target, step)
    )
    budget = int(0.6 * free_peak())
    plan = plan_under.__wrapped__(budget)
    assert plan.fits and not more
    first, last = plan.rounds[0], plan.rounds[-1]
    assert first.limit_bytes == budget and first.compiled_peak_bytes > budget
    assert budget - 0.45 * free_peak() < last.limit_bytes < budget


def test_the_compiler_has_the_last_word_where_no_plan_is_predicted_to_fit(monkeypatch):
    """A compiler that needs a fifth less than anybody could know."""
    from dataclasses import replace

    from kiwi.campaign import tools
    from kiwi.xla import compilers

    with pytest.raises(kiwi.errors.InfeasibleBudgetError) as refused:
        plan_under(int(0.1 * free_peak()))
    least, compile_for = refused.value.least_peak_bytes, compilers.compile_for
    assert least is not None

    def frugal(target, step):
        compiled = compile_for(target, step)
        return replace(compiled, peak_bytes=int(0.8 * compiled.peak_bytes), memory=None)

    monkeypatch.setattr(tools, "begin_for", lambda *of: partial(frugal, *of))
    plan = plan_under.__wrapped__(int(0.9 * least))
    assert plan.fits
    assert plan.estimate.peak_bytes > plan.memory_budget_bytes >= plan.compiled.peak_bytes


def test_far_below_the_least_peak_the_prediction_decides():
    error = kiwi.errors.InfeasibleBudgetError("", least_peak_bytes=130)
    assert raised_limits(error, 60) == ()
    assert raised_limits(error, 110) == (131,)
    assert raised_limits(kiwi.errors.NoPlanFoundError(""), 100) == (110, 125)


def test_without_a_check_the_predicted_heap_is_kept_within_the_budget():
    plan = plan_under(int(0.7 * free_peak()), verify=None)
    assert plan.compiled is None and plan.fits
    assert plan.rounds[-1].compiled_peak_bytes is None


def test_a_limit_that_leaves_room_falls_below_what_the_plan_holds():
    """A little less of it would be met by the same plan, whose heap wastes as much."""
    plan = plan_under("64GiB", verify=None)
    held = max(plan.estimate.memory_bytes)
    start = Start(plan.origin.planning)
    tools = Tools(replace(plan.origin.settings, memory_budget_bytes=held))
    search = ProblemSearch(planner_named("joint"), plan.traced, tools, start, 2 * held)
    over = replace(plan, estimate=replace(plan.estimate, peak_bytes=held + 10))
    last = replace(plan.rounds[-1], limit_bytes=2 * held)
    assert search.learn(replace(over, memory_budget_bytes=held), [last]) == held - 10


def test_the_report_accounts_for_every_byte():
    report = kiwi.memory_report(plan_under(int(0.75 * free_peak())))
    assert sum(row.bytes for row in report.compiled) == report.compiled_peak_bytes
    assert sum(row.bytes for row in report.predicted) <= report.predicted_peak_bytes
    names = {row.name for row in report.compiled if row.what == "argument"}
    assert "batch['x']" in names or any("batch" in name for name in names)
    lines = {row.source_line for row in report.compiled if row.what in ("result", "recomputed")}
    assert any("mlp.py" in line for line in lines)
    text = str(report)
    assert "Compiled (cpu)" in text and "Predicted" in text


def test_differences_are_what_one_side_holds_and_the_other_does_not():
    plan = plan_under(int(0.75 * free_peak()))
    report = kiwi.memory_report(plan)
    beyond = sum(d.compiled_bytes - d.predicted_bytes for d in report.differences)
    predicted = plan.estimate.memory_bytes[unit_at_peak(plan.compiled.memory)]
    assert beyond == plan.compiled.peak_bytes - predicted


def test_there_is_nothing_to_report_without_a_check():
    plan = plan_under(int(0.7 * free_peak()), verify=None)
    with pytest.raises(kiwi.errors.InvalidArgumentError, match="no compiled program"):
        kiwi.memory_report(plan)


@pytest.mark.parametrize(("limit", "late"), [(2, 1), (10, 5), (30, 8), (60, 15)])
def test_late_rounds_get_half_of_a_short_limit_and_a_quarter_of_a_long_one(limit, late):
    assert late_part(Allowance(8e9, limit)) == Allowance(2e9, late)
