"""The programs that are compiled for a plan whose collectives overlap."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.campaign import overlap_search
from kiwi.campaign.attempts import NEEDED_BARRIERS
from kiwi.campaign.closed_loop import ClosedLoop
from kiwi.campaign.overlap_search import OverlapSearch
from kiwi.campaign.proposer import Orders, Proposal
from kiwi.campaign.tools import Tools
from kiwi.errors import CompileCheckError
from kiwi.plans.plan import Plan
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.simulated import AxisSeconds
from tests.helpers.begins import begins
from tests.helpers.on_cpu import ON_CPU

BUDGET = 2**30
WITHIN, OVER, FAR_OVER = BUDGET, BUDGET + BUDGET // 25, BUDGET + BUDGET // 10
HALF_OVER, QUARTER_OVER = BUDGET + BUDGET // 2, BUDGET + BUDGET // 4


@pytest.fixture(scope="module")
def base() -> Plan:
    """Returns a compiled plan of one device that is predicted to fill the budget."""
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    plan = kiwi.plan(lambda x: jnp.tanh(x @ x), x, mesh_shape=(1,), profile=ON_CPU, verify="cpu")
    return replace(plan, estimate=replace(plan.estimate, peak_bytes=BUDGET))


@pytest.fixture(autouse=True)
def with_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every plan have copies ahead of their readers, and gradients in time."""

    def flagged(name: str) -> Callable[[Plan], Plan]:
        return lambda plan: replace(plan, execution=replace(plan.execution, **{name: True}))

    monkeypatch.setattr(overlap_search, "with_copies_ahead", flagged("copies_ahead"))
    monkeypatch.setattr(overlap_search, "with_gradients_in_time", flagged("gradients_in_time"))


def found_of(
    base: Plan, programs: list[tuple[int, float]], plans: int = 0
) -> tuple[Plan | None, int]:
    """Returns the plan that is found, and the number of programs that were not compiled.
    `programs`: the peaks and seconds of programs, in the order of compilation. `plans`: the number
    of plans of less memory."""
    left = iter(programs)

    def compiled(step: Any) -> CompiledProgram:
        peak_bytes, seconds = next(left)
        assert base.compiled is not None and base.compiled.time is not None
        time = replace(base.compiled.time, step_seconds=seconds, communication=())
        return replace(base.compiled, peak_bytes=peak_bytes, time=time)

    offered: Iterator[int] = iter(range(plans))

    def propose(limit_bytes: int, most_seconds: float) -> Proposal | None:
        if next(offered, None) is None:
            return None
        plan = replace(base, estimate=replace(base.estimate, peak_bytes=limit_bytes))
        return Proposal(plan, limit_bytes)

    search: OverlapSearch[Proposal] = OverlapSearch(BUDGET, [begins(compiled)])
    found = search.run(Proposal(base, BUDGET), propose)
    return None if found is None else found.plan, len(list(left))


def test_one_program_that_fits_is_all(base: Plan):
    plan, left = found_of(base, [(WITHIN, 1.0), (WITHIN, 0.5)])
    assert plan is not None and plan.execution.copies_ahead and left == 1


def test_a_little_over_the_budget_gradients_in_time_may_fit(base: Plan):
    plan, left = found_of(base, [(OVER, 1.0), (WITHIN, 1.005)])
    assert plan is not None and plan.execution.gradients_in_time and left == 0


def test_far_over_the_budget_a_plan_of_less_memory_comes_first(base: Plan):
    programs = [(FAR_OVER, 1.0), (OVER, 1.0), (WITHIN, 1.1), (WITHIN, 0.5)]
    plan, left = found_of(base, programs, plans=1)
    assert plan is not None and plan.execution.gradients_in_time and left == 1


def test_very_far_over_the_budget_gradients_in_time_come_at_once(base: Plan):
    plan, left = found_of(base, [(HALF_OVER, 1.0), (WITHIN, 1.04), (WITHIN, 0.5)], plans=1)
    assert plan is not None and plan.execution.gradients_in_time and left == 1
    assert plan.compiled is not None and plan.compiled.step_seconds == 1.04


def test_a_smaller_form_that_is_hardly_slower_is_that_of_further_plans(base: Plan):
    programs = [(HALF_OVER, 1.0), (QUARTER_OVER, 1.04), (WITHIN, 1.06), (WITHIN, 0.5)]
    plan, left = found_of(base, programs, plans=1)
    assert plan is not None and plan.execution.gradients_in_time and left == 1


@pytest.mark.parametrize("smaller", [(HALF_OVER - 2**20, 1.04), (QUARTER_OVER, 1.06)])
def test_a_form_that_saves_little_or_takes_long_is_not(base: Plan, smaller: tuple[int, float]):
    programs = [(HALF_OVER, 1.0), smaller, (WITHIN, 1.0), (WITHIN, 0.5)]
    plan, left = found_of(base, programs, plans=1)
    assert plan is not None and not plan.execution.gradients_in_time and left == 1


def test_no_larger_plan_follows_a_refusal_once_a_program_fits(base: Plan):
    asked = limits_asked(base, [(FAR_OVER, 1.0), (WITHIN // 2, 1.1)])
    assert len(asked) == 2 and asked[0] < asked[1]


def test_no_plan_is_sought_between_two_that_take_about_as_long(base: Plan):
    asked = limits_asked(base, [(FAR_OVER, 1.0), (WITHIN // 2, 1.0)])
    assert len(asked) == 1


def limits_asked(base: Plan, programs: list[tuple[int, float]]) -> list[int]:
    """Returns the limits under which plans of less memory are requested. The first request gets a
    plan that is as much slower as its program."""
    left, asked = iter(programs), list[int]()
    first_seconds = base.estimate.step_seconds

    def compiled(step: Any) -> CompiledProgram:
        peak_bytes, seconds = next(left)
        assert base.compiled is not None and base.compiled.time is not None
        time = replace(base.compiled.time, step_seconds=seconds * first_seconds, communication=())
        return replace(base.compiled, peak_bytes=peak_bytes, time=time)

    def propose(limit_bytes: int, most_seconds: float) -> Proposal | None:
        asked.append(limit_bytes)
        if len(asked) > 1:
            return None
        seconds = programs[1][1] * first_seconds
        estimate = replace(base.estimate, peak_bytes=limit_bytes, step_seconds=seconds)
        return Proposal(replace(base, estimate=estimate), limit_bytes)

    search: OverlapSearch[Proposal] = OverlapSearch(BUDGET, [begins(compiled)])
    assert search.run(Proposal(base, BUDGET), propose) is not None
    return asked


def test_once_a_form_fits_larger_plans_are_compiled_in_that_form_alone(base: Plan):
    programs = [(FAR_OVER, 1.0), (OVER, 1.0), (WITHIN // 2, 1.1), (WITHIN, 1.05), (WITHIN, 0.5)]
    plan, left = found_of(base, programs, plans=2)
    assert plan is not None and plan.execution.gradients_in_time and left == 1
    assert plan.compiled is not None and plan.compiled.step_seconds == 1.05


@pytest.mark.parametrize(("seconds", "left"), [(1.01, 0), (1.05, 1)])
def test_a_form_that_was_as_fast_is_compiled_for_the_next_plan_too(
    base: Plan, seconds: float, left: int
):
    programs = [(OVER, 1.0), (OVER, seconds), (WITHIN, 1.0), (WITHIN, 0.9)]
    plan, unused = found_of(base, programs, plans=1)
    assert plan is not None and unused == left
    assert plan.execution.gradients_in_time == (left == 0)


def test_a_form_that_is_larger_and_slower_is_compiled_no_more(base: Plan):
    programs = [(OVER, 1.0), (OVER, 1.01), (OVER, 1.1), (OVER - 1, 1.0), (WITHIN, 1.0)]
    plan, left = found_of(base, programs, plans=2)
    assert plan is not None and plan.execution.gradients_in_time and left == 0


def test_of_two_ways_with_the_same_program_one_is_compiled_for_further_plans(base: Plan):
    assert base.compiled is not None and base.compiled.time is not None
    waits = (AxisSeconds(("d",), 1.0, 1.0),)
    time = replace(base.compiled.time, step_seconds=1.0, communication=waits)
    program, made = replace(base.compiled, peak_bytes=OVER, time=time), list[int]()

    def compiled_in(way: int) -> Callable[[Any], CompiledProgram]:
        def compiled(step: Any) -> CompiledProgram:
            made.append(way)
            return program

        return compiled

    plans = iter([Proposal(base, BUDGET)])
    search: OverlapSearch[Proposal] = OverlapSearch(
        BUDGET, [begins(compiled_in(0)), begins(compiled_in(1))]
    )
    assert search.run(Proposal(base, BUDGET), lambda limit, most: next(plans, None)) is None
    assert made.count(0) == 1 < made.count(1)


def test_copies_stay_beside_their_readers_at_last(base: Plan):
    plan, left = found_of(base, [(OVER, 1.0), (OVER, 1.5), (WITHIN, 1.2)])
    assert plan is not None and not plan.execution.copies_ahead and left == 0


def test_where_two_smaller_plans_have_no_smaller_program_no_third_one_is_compiled(base: Plan):
    programs = [*[(OVER, 1.0), (OVER, 1.5)] * 3, (WITHIN, 1.2), (WITHIN, 0.5)]
    plan, left = found_of(base, programs, plans=3)
    assert plan is not None and not plan.execution.copies_ahead and left == 1


def test_a_way_that_failed_to_compile_is_tried_with_the_next_plan(base: Plan):
    """XLA:TPU fails where one of the step's sums has a certain shape; another plan has others."""
    programs = iter([None, 2.0, 1.0])
    compiled = base.compiled
    assert compiled is not None and compiled.time is not None
    waits = AxisSeconds((), 1.0, 1.0)

    def compile_next(step: Any) -> CompiledProgram:
        seconds = next(programs)
        if seconds is None:
            raise CompileCheckError("XLA fails.")
        assert compiled.time is not None
        time = replace(compiled.time, step_seconds=seconds, communication=(waits,))
        return replace(compiled, peak_bytes=WITHIN, time=time)

    def propose(limit_bytes: int, most_seconds: float) -> Proposal:
        estimate = replace(base.estimate, peak_bytes=limit_bytes)
        return Proposal(replace(base, estimate=estimate), limit_bytes)

    search: OverlapSearch[Proposal] = OverlapSearch(BUDGET, [begins(compile_next)] * 2)
    found = search.run(Proposal(base, BUDGET), propose)
    assert found is not None and found.plan.compiled is not None
    assert found.plan.compiled.step_seconds == 1.0 and not list(programs)


def test_a_plan_that_was_compiled_before_is_not_compiled_again(base: Plan):
    assert base.compiled is not None and base.origin is not None
    program, count = base.compiled, list[int]()

    def compiled(step: Any) -> CompiledProgram:
        count.append(1)
        return program

    tools = Tools(base.origin.settings, begins(compiled))
    proposer: Any = SimpleNamespace(orders=Orders(range(1), of_all=1))
    loop: ClosedLoop[Proposal] = ClosedLoop(base.origin.planner, proposer, BUDGET, tools)
    for plan in (base, replace(base, execution=replace(base.execution))):
        assert loop._compiled(Proposal(plan, BUDGET), NEEDED_BARRIERS).plan.compiled is program
    assert len(count) == 1
    other = replace(base, execution=replace(base.execution, tied_steps=frozenset({0})))
    loop._compiled(Proposal(other, BUDGET), NEEDED_BARRIERS)
    assert len(count) == 2
