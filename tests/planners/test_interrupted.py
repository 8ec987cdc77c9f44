"""Ctrl-C: the best plan so far if `any_time` asks for it, and the time of each stage."""

import functools

import pytest

import kiwi
from examples import mlp
from kiwi.campaign import problem_search, tools
from kiwi.campaign.tools import INTERRUPTED_PLAN
from kiwi.plans.file import read
from kiwi.problem import build
from kiwi.timings import OTHER

CONFIG = mlp.MlpConfig(layers=2, width=64, batch=256)


def make_plan(**options):
    return kiwi.plan(
        mlp.make_train_step(CONFIG),
        mlp.abstract_state(CONFIG),
        mlp.abstract_batch(CONFIG),
        mesh_shape=(2, 2),
        profile="h100-sxm",
        donate_argnums=0,
        **({"verify": None, "plan_cache": False} | options),
    )


class _Once:
    """Raises `KeyboardInterrupt` once, as soon as a search has a solution."""

    def __init__(self):
        self.heard = 0
        self.has_raised = False

    def __call__(self, progress):
        self.heard += self.has_raised
        if progress.solution is not None and not self.has_raised:
            self.has_raised = True
            raise KeyboardInterrupt


def test_a_search_that_is_interrupted_leaves_its_best_plan():
    once = _Once()
    plan = make_plan(any_time=True, on_progress=once, gap=0.0)
    assert once.has_raised and plan.fits
    assert INTERRUPTED_PLAN in plan.notes
    assert not plan.solve_result.deterministic


def test_without_any_time_it_is_raised():
    with pytest.raises(KeyboardInterrupt):
        make_plan(on_progress=_Once(), gap=0.0)


def test_a_later_compilation_that_is_interrupted_leaves_the_plan_that_fits(monkeypatch):
    """Ctrl-C while the closed loop looks for something better than the plan it has."""
    whole = problem_search.ProblemSearch.known

    def known(self, most_seconds):
        yield from whole(self, most_seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(problem_search.ProblemSearch, "known", known)
    plan = make_plan(any_time=True)
    assert plan.fits and INTERRUPTED_PLAN in plan.notes
    with pytest.raises(KeyboardInterrupt):
        make_plan()


def test_searches_after_an_interruption_may_do_no_work(monkeypatch):
    once, limits = _Once(), []
    whole = tools.solve

    @functools.wraps(whole)
    def solve(problem, **options):
        limits.append((once.has_raised, options["work_limit"]))
        return whole(problem, **options)

    monkeypatch.setattr(tools, "solve", solve)
    make_plan(any_time=True, on_progress=once, gap=0.0)
    before = [limit for has_raised, limit in limits if not has_raised]
    behind = [limit for has_raised, limit in limits if has_raised]
    assert before and behind and min(before) > 0 and max(behind) == 0


def test_the_stages_of_planning_sum_to_the_whole(tmp_path):
    plan = make_plan()
    found = {each.stage: each.seconds for each in plan.timings}
    assert {"trace", "lower", "units", "problem", "solve", "estimate", "emit"} <= found.keys()
    assert sum(found.values()) >= 0.95 * plan.planning_seconds
    assert found[OTHER] <= 0.3 * sum(found.values())
    assert "processor" in str(plan)
    plan.save(tmp_path / "plan.json")
    assert '"timings": {' in (tmp_path / "plan.json").read_text()[:2000]
    assert "timings" not in read(tmp_path / "plan.json")


def test_a_restricted_problem_is_assembled_once(monkeypatch):
    """What prices, estimates and explains a solution asks for the same problem."""
    asked, made = [], []
    whole, restricted = build._Assembly.problem, build.PlanningProblem.restricted

    def assemble(self, *args):
        made.append(self._matrices.with_parts)
        return whole(self, *args)

    def ask(self, solution, kept=build.NONE_KEPT):
        asked.append((id(self), tuple(solution), kept))
        return restricted(self, solution, kept)

    monkeypatch.setattr(build._Assembly, "problem", assemble)
    monkeypatch.setattr(build.PlanningProblem, "restricted", ask)
    make_plan()
    assert sum(made) == len(set(asked)) < len(asked)
