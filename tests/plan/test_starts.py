"""Plans begun with those of other planners: choices that all share, and what "joint" does alone."""

from dataclasses import replace

import pytest

import kiwi
from examples import gpt
from kiwi.errors import InfeasibleBudgetError, NoPlanFoundError
from kiwi.plan import starts
from kiwi.plan.estimate import estimate_solution
from kiwi.plan.loop import ClosedLoop
from kiwi.plan.planner import formulate, make_plan
from kiwi.plan.starts import begun_by_baselines, fastest_start, may_help
from kiwi.plan.translate import Choices, offered
from kiwi.strategy import residency

CONFIG = replace(gpt.SIZES["tiny"], vocabulary=0)
OPTIONS = {"mesh_shape": (2, 2), "donate_argnums": 0, "time_limit_seconds": 2.0, "verify": None}
NO_LIMIT_BYTES = 2**40


def _planned(planner, budget=NO_LIMIT_BYTES):
    step = kiwi.jit(gpt.make_train_step(CONFIG), planner=planner, memory_budget=budget, **OPTIONS)
    return step.plan(gpt.abstract_state(CONFIG), gpt.abstract_batch(CONFIG))


@pytest.fixture(scope="module")
def dots():
    """A plan that recomputes all but matrix products, in chains, and its problem."""
    plan = _planned("alpa+dots")
    return plan, plan.origin.planning


@pytest.fixture(scope="module")
def joint(dots):
    """What the problem of "joint" is formulated from."""
    origin = dots[0].origin
    return origin.traced, replace(origin.settings, planner="joint")


@pytest.fixture
def without_recomputation(monkeypatch):
    """A "joint" that finds no time at which to recompute anything by itself."""
    monkeypatch.setattr(residency, "MAX_TIMES", 0)


def test_choices_are_a_solution_of_the_problem_that_offers_them(dots, joint):
    plan, planning = dots
    choices = Choices.of(planning, plan.solve_result.solution)
    assert choices.solution_of(planning) == plan.solve_result.solution
    offering = formulate(joint[0], None, joint[1], offered=offered([choices]))
    solution = choices.solution_of(offering)
    assert solution is not None and Choices.of(offering, solution) == choices
    estimate = estimate_solution(offering, solution)
    assert estimate.step_seconds == pytest.approx(plan.estimate.step_seconds, rel=1e-9)
    assert estimate.recompute_seconds == pytest.approx(plan.estimate.recompute_seconds, rel=1e-9)
    assert estimate.peak_bytes == plan.estimate.peak_bytes


def test_without_the_offer_they_are_none(dots, joint, monkeypatch):
    """Where each value may be recomputed at its own first late reader only: no long chains."""
    plan, planning = dots
    monkeypatch.setattr(residency, "MAX_TIMES", 1)
    alone = formulate(joint[0], None, joint[1])
    choices = Choices.of(planning, plan.solve_result.solution)
    assert any(r.recomputes for _, r in choices.units)
    assert choices.solution_of(alone) is None


def test_offers_are_joined_and_keep_what_is_there(dots, joint):
    plan, planning = dots
    mine = Choices.of(planning, plan.solve_result.solution)
    kept = replace(mine, units=tuple((s, replace(r, recompute_at=None)) for s, r in mine.units))
    both = offered([mine, kept, mine])
    assert [len(set(r)) for r in both] == [len(r) for r in both]
    assert max(map(len, both)) == 2 and all(
        r[0] == m for r, (_, m) in zip(both, mine.units, strict=True)
    )
    alone = formulate(joint[0], None, joint[1])
    more = formulate(joint[0], None, joint[1], offered=both)
    for old, new, given in zip(alone.unit_nodes, more.unit_nodes, both, strict=True):
        count = len(old.residency.options)
        assert new.residency.options[:count] == old.residency.options
        assert set(new.residency.options) == {*old.residency.options, *given}


def test_a_search_that_begins_with_a_baseline_never_ends_behind_it(dots, joint):
    plan, planning = dots
    budget = plan.estimate.peak_bytes
    choices = Choices.of(planning, plan.solve_result.solution)
    settings = replace(joint[1], memory_budget_bytes=budget)
    offering = formulate(joint[0], None, settings, offered=offered([choices]))
    start = fastest_start(offering, [choices], budget)
    assert start is not None
    assert fastest_start(offering, [choices], budget - 1) is None
    found = make_plan(joint[0], None, settings, planning=offering, warm_start=start)
    assert found.estimate.step_seconds <= plan.estimate.step_seconds * (1 + 1e-9)
    assert found.fits


@pytest.fixture
def tight(dots, joint, without_recomputation):
    """A budget that recomputation by a rule meets, and sharding alone does not."""
    traced, settings = joint
    with pytest.raises(InfeasibleBudgetError) as caught:
        make_plan(traced, None, replace(settings, planner="alpa+dots", memory_budget_bytes=1))
    budget = int(1.1 * caught.value.least_peak_bytes)
    rule = _planned("alpa+dots", budget)
    assert rule.fits
    return budget, rule


def test_joint_ends_with_a_plan_where_a_baseline_has_one(tight, joint, tmp_path):
    budget, rule = tight
    traced, settings = joint
    settings = replace(settings, memory_budget_bytes=budget)
    alone = formulate(traced, None, settings)
    with pytest.raises((InfeasibleBudgetError, NoPlanFoundError)):
        ClosedLoop(traced, alone, settings).run(None)
    plan = make_plan(traced, None, settings)
    assert plan.fits and plan.planner == "joint" and plan.execution.recomputed
    # The baseline that it began with had an eighth of the time of `rule`.
    assert plan.estimate.step_seconds <= 1.05 * rule.estimate.step_seconds
    # It can be explained and changed like any other, also when read from a file.
    path = tmp_path / "plan.json"
    plan.save(path)
    arguments = gpt.abstract_state(CONFIG), gpt.abstract_batch(CONFIG)
    loaded = kiwi.load_plan(path).apply(gpt.make_train_step(CONFIG)).plan(*arguments)
    again = min(plan.execution.recomputed)
    for each in (plan, loaded):
        changed = each.what_if(again, residency="recompute", time_limit_seconds=1)
        assert again in changed.execution.recomputed


def test_baselines_are_asked_only_where_they_may_help(joint):
    settings = replace(joint[1], memory_budget_bytes=1000)
    near = InfeasibleBudgetError("", least_peak_bytes=1100)
    far = InfeasibleBudgetError("", least_peak_bytes=2000)
    assert may_help(near, settings) and may_help(NoPlanFoundError(""), settings)
    assert not may_help(far, settings)
    assert not may_help(near, replace(settings, planner="alpa"))


def test_without_a_plan_of_any_baseline_there_is_no_start(joint, monkeypatch):
    traced, settings = joint
    asked = []

    def formulated(own, *, offered=()):
        asked.append(own.planner)
        return formulate(traced, None, own, offered=offered)

    settings = replace(settings, memory_budget_bytes=1000)
    assert begun_by_baselines(traced, settings, formulated) is None
    assert tuple(asked) == starts.BASELINES
