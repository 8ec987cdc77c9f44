"""The history of a plan: a record for each attempt, with the attempts of the answer marked."""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.campaign.attempts import ATTEMPTS, NEEDED_BARRIERS, TIED_LAYERS
from kiwi.campaign.history import History
from kiwi.cli.main import main
from kiwi.plans.explain_search import SearchExplanation
from kiwi.plans.history import Outcome
from kiwi.solver import SolveResult, SolveStatus
from tests.helpers.on_cpu import ON_CPU

NAMES = {attempt.name for attempt in ATTEMPTS}


def step(weights, x):
    def loss(weights):
        hidden = x
        for weight in weights:
            hidden = jnp.tanh(hidden @ weight)
        return jnp.mean(hidden**2)

    return jax.value_and_grad(loss)(weights)


ARGUMENTS = (
    [jax.ShapeDtypeStruct((128, 128), "float32")] * 4,
    jax.ShapeDtypeStruct((1024, 128), "float32"),
)


@functools.cache
def planned(memory_budget: int | str = "1GiB") -> kiwi.Plan:
    options: dict[str, Any] = {
        "mesh_shape": (2,),
        "profile": ON_CPU,
        "verify": "cpu",
        "effort": "quick",
    }
    return kiwi.plan(step, *ARGUMENTS, memory_budget=memory_budget, **options)


def tight():
    return planned(int(0.9 * planned().peak_bytes))


@pytest.mark.parametrize("make", [planned, tight], ids=["free", "tight"])
def test_the_answer_is_a_solution_and_its_program(make):
    plan = make()
    solution, program = plan.explain("search").answer
    assert plan.made_by == tuple(plan.history.index(each) for each in (solution, program))
    assert solution.work > 0 and solution.compiled_peak_bytes is None
    assert plan.compiled is not None
    assert program.compiled_peak_bytes == plan.compiled.peak_bytes
    assert program.predicted_peak_bytes == plan.estimate.peak_bytes


def test_every_record_has_the_names_of_attempts():
    history = (*planned().history, *tight().history)
    assert {name for trial in history for name in (*trial.within, trial.attempt)} <= NAMES


def test_programs_on_record_are_those_of_the_rounds():
    plan = tight()
    programs = [t for t in plan.history if t.compiled_peak_bytes is not None]
    rounds = [r.compiled_peak_bytes for r in plan.rounds]
    assert [t.compiled_peak_bytes for t in programs] == rounds


def test_a_file_keeps_the_history(tmp_path, capsys):
    plan = tight()
    plan.save(tmp_path / "plan.json")
    saved = kiwi.load_plan(tmp_path / "plan.json")
    assert saved.history == plan.history
    again = saved.apply(step).plan(*ARGUMENTS)
    assert again.history == plan.history and again.made_by == plan.made_by
    assert main(["explain", str(tmp_path / "plan.json"), "search"]) == 0
    assert capsys.readouterr().out.strip() == str(plan.explain("search"))
    assert main(["explain", str(tmp_path / "plan.json"), "search", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["history"]) == len(plan.history)


def test_a_refused_budget_tells_what_was_tried():
    with pytest.raises(kiwi.errors.BudgetNotMetError) as caught:
        planned(int(0.4 * planned().peak_bytes))
    history = caught.value.plan.history
    assert history and all(trial.outcome is not Outcome.ANSWER for trial in history)


def test_attempts_for_another_one_are_logged_within_it():
    history = History()
    result = SolveResult(
        status=SolveStatus.FEASIBLE,
        seconds=0.0,
        objective=1.0,
        bound=1.0,
        peak_bytes=3,
        solver="",
        solution=(0,),
        work=7,
    )
    with history.within(NEEDED_BARRIERS):
        first = history.solution(TIED_LAYERS, 10, result)
    second = history.solution(TIED_LAYERS, None, result, is_better=False)
    trials = history.concluded((first,))
    assert [trial.within for trial in trials] == [(NEEDED_BARRIERS.name,), ()]
    assert [trial.outcome for trial in trials] == [Outcome.ANSWER, Outcome.SLOWER]
    assert second == 1 and trials[0].limit_bytes == 10 and trials[0].work == 7


def test_a_plan_made_stage_by_stage_says_that_nothing_was_searched():
    assert "not searched" in str(SearchExplanation(()))
