"""Plans that start from plans of other planners: choices that all share, and searches by "joint"
alone."""

from dataclasses import replace

import pytest

import kiwi
from benchmarks.paper._mesh_run import fastest_start, offered, start_from
from examples import gpt, mlp
from kiwi.campaign.attempts import LEAST_PEAK
from kiwi.campaign.campaign import Campaign
from kiwi.errors import NoPlanFoundError
from kiwi.memory import residency
from kiwi.planners.product import JOINT
from kiwi.plans.estimate import estimate_solution
from kiwi.plans.history import Outcome
from kiwi.problem.solved import Solved
from kiwi.problem.translation import Choices
from tests.helpers.planning import WAITING

GPT = replace(gpt.SIZES["tiny"], vocabulary=0, layers=1)
MLP = mlp.MlpConfig(layers=4, width=64, batch=2048)
OPTIONS = {"mesh_shape": (2, 2), "donate_argnums": 0, "time_limit_seconds": 4.0, "verify": None}
NO_LIMIT_BYTES = 2**40
TIGHT_BYTES = 3_850_000
"""For the MLP: less than the peak with sharding alone, and more than the peak with everything
except matmuls recomputed."""


def _planned(module, config, planner, budget=NO_LIMIT_BYTES):
    step = kiwi.jit(
        module.make_train_step(config),
        planner=planner,
        memory_budget=budget,
        profile=WAITING,
        **OPTIONS,
    )
    return step.plan(module.abstract_state(config), module.abstract_batch(config))


@pytest.fixture(scope="module")
def dots():
    """Returns a plan that recomputes everything except matmuls, in chains, and its choices."""
    plan = _planned(gpt, GPT, "alpa+dots")
    assert plan.execution.recomputed
    return plan, Choices.of(plan.origin.planning, plan.solve_result.solution)


def _joint(plan, budget=NO_LIMIT_BYTES):
    """Returns the arguments from which the problem of "joint" is formulated, for the step of a
    plan."""
    settings = replace(plan.origin.settings, planner="joint", memory_budget_bytes=budget)
    return plan.traced, settings


def _formulated(step, settings, **options):
    return JOINT.formulate(step, settings.memory_budget_bytes, settings, **options)


def test_choices_are_a_solution_of_the_problem_that_offers_them(dots):
    plan, choices = dots
    assert choices.solution_of(plan.origin.planning) == plan.solve_result.solution
    step, settings = _joint(plan)
    offering = _formulated(step, settings, offered=offered([choices]))
    solution = choices.solution_of(offering)
    assert solution is not None and Choices.of(offering, solution) == choices
    estimate = estimate_solution(Solved(offering, solution))
    assert estimate.step_seconds == pytest.approx(plan.estimate.step_seconds, rel=1e-9)
    assert estimate.recompute_seconds == pytest.approx(plan.estimate.recompute_seconds, rel=1e-9)
    assert estimate.peak_bytes == plan.estimate.peak_bytes


def test_without_the_offer_they_are_none(dots, monkeypatch):
    """Where each value may be recomputed at its own first late reader only: no long chains."""
    plan, choices = dots
    monkeypatch.setattr(residency, "MAX_TIMES", 1)
    step, settings = _joint(plan)
    assert choices.solution_of(_formulated(step, settings)) is None


def _kept(unit):
    return replace(unit, residency=replace(unit.residency, recompute_at=None))


def test_offers_are_joined_and_keep_what_is_there(dots):
    plan, mine = dots
    kept = replace(mine, units=tuple(_kept(unit) for unit in mine.units))
    both = offered([mine, kept, mine])
    assert [len(set(r)) for r in both] == [len(r) for r in both]
    assert max(map(len, both)) == 2
    assert [r[0] for r in both] == [unit.residency for unit in mine.units]
    step, settings = _joint(plan)
    alone = _formulated(step, settings)
    more = _formulated(step, settings, offered=both)
    for old, new, given in zip(alone.unit_nodes, more.unit_nodes, both, strict=True):
        count = len(old.residency.options)
        assert new.residency.options[:count] == old.residency.options
        assert set(new.residency.options) == {*old.residency.options, *given}


def test_a_search_that_begins_with_a_plan_never_ends_behind_it(dots):
    plan, choices = dots
    budget = plan.estimate.peak_bytes
    step, settings = _joint(plan, budget)
    start = start_from([choices], step, budget, settings)
    assert start is not None
    assert fastest_start(start.problem, [choices], budget - 1) is None
    found = JOINT.make(step, settings, start)
    assert found.estimate.step_seconds <= plan.estimate.step_seconds * (1 + 1e-9)
    assert found.fits


@pytest.fixture
def keeping(monkeypatch):
    """Lets "joint" find no time at which to recompute anything by itself."""
    monkeypatch.setattr(residency, "MAX_TIMES", 0)


def test_joint_ends_with_a_plan_where_only_layers_are_recomputed(keeping, tmp_path, monkeypatch):
    rule = _planned(mlp, MLP, "alpa+dots", TIGHT_BYTES)
    assert rule.fits
    step, settings = _joint(rule, TIGHT_BYTES)
    search, starts = Campaign.search, []

    def found_from_another_start(self, start, tools, limit_bytes=None):
        starts.append(start)
        if len(starts) == 1:
            raise NoPlanFoundError("Its own search ends without a plan.")
        return search(self, start, tools, limit_bytes)

    monkeypatch.setattr(Campaign, "search", found_from_another_start)
    settings = replace(settings, time_limit_seconds=30.0, gap=0.12)  # It ends with the gap.
    plan = JOINT.make(step, settings)
    assert plan.fits and plan.planner == "joint" and plan.execution.recomputed
    assert len(starts) == 2 and starts[1].solution is not None
    answer = [trial for trial in plan.history if trial.outcome is Outcome.ANSWER]
    assert {trial.within[0] for trial in answer} == {LEAST_PEAK.name}
    # What it began with had been searched for a second, and to a gap.
    assert plan.estimate.step_seconds <= rule.estimate.step_seconds / (1 - settings.gap)
    # It can be changed like any other, also when read from a file.
    plan.save(tmp_path / "plan.json")
    arguments = mlp.abstract_state(MLP), mlp.abstract_batch(MLP)
    loaded = kiwi.load_plan(tmp_path / "plan.json").apply(mlp.make_train_step(MLP))
    again = min(plan.execution.recomputed)
    for each in (plan, loaded.plan(*arguments)):
        changed = each.what_if(again, residency="recompute", time_limit_seconds=1.0)
        assert again in changed.execution.recomputed and changed.fits
