"""Schedules are searched again under a lower limit while the compiled program is over the
budget."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.campaign import shares
from kiwi.campaign.closed_loop import ClosedLoop, estimate_of_overlapping
from kiwi.campaign.limit_search import LimitSearch
from kiwi.campaign.overlap_search import (
    NO_GAIN,
    NO_ROOM,
    OverlapSearch,
)
from kiwi.campaign.proposer import Orders, Proposal
from kiwi.campaign.tools import Tools
from kiwi.errors import BudgetNotMetError, CompileCheckError, InfeasibleBudgetError
from kiwi.planners.registry import planner_named
from kiwi.plans.record import Origin
from kiwi.xla.simulated import AxisSeconds
from kiwi.xla.tpu.compiler import TPU
from tests.helpers.begins import begins
from tests.helpers.on_cpu import ON_CPU

BUDGET = 2**30
WASTE = 10 * 2**20
LITTLE = shares.LITTLE_FURTHER * BUDGET
"""The memory that the compiler of these tests holds beyond any prediction."""


@pytest.fixture(scope="module")
def base():
    shapes = [jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 3

    def step(weights):
        return jax.grad(lambda ws: jnp.sum(jnp.tanh(ws[0] @ ws[1]) @ ws[2]))(weights)

    return kiwi.plan(
        step,
        shapes,
        mesh_shape=(1,),
        profile=ON_CPU,
        memory_budget=BUDGET,
        planner="alpa",
        verify="cpu",
    )


@pytest.fixture
def tightened(base, monkeypatch):
    """Returns the closed loop of a search, with or without a compiler. All plans of these tests
    have one execution, and their compiler distinguishes plans by the limit."""
    monkeypatch.setattr("kiwi.campaign.closed_loop._is_same_program", lambda *_: False)

    def run(find, compile_step, *, budget=BUDGET, most_orders=8, other_order=None, **options):
        options = {"cause": "", "other_order": other_order, **options}
        orders = Orders(shares.SCHEDULE_ORDERS, of_all=most_orders, at_once=True)
        search = LimitSearch(find, budget, orders=orders, **options)
        assert isinstance(base.origin, Origin)
        tools = Tools(base.origin.settings, None if compile_step is None else begins(compile_step))
        return ClosedLoop(planner_named("alpa"), search, budget, tools).run()

    return run


@pytest.fixture
def asked(base):
    """Returns the requested limits, a search whose plans fill their limits, and a compiler whose
    programs need more."""
    limits: list[int] = []

    def plan_within(limit_bytes):
        limits.append(limit_bytes)
        if limit_bytes < 0.9 * BUDGET:
            raise InfeasibleBudgetError("Nothing is so small.")
        estimate = replace(base.estimate, peak_bytes=limit_bytes)
        return replace(base, estimate=estimate, memory_budget_bytes=limits[0])

    def compile_step(step):
        return replace(base.compiled, peak_bytes=limits[-1] + WASTE)

    return limits, plan_within, compile_step


def test_the_limit_falls_by_the_excess(asked, tightened):
    limits, plan_within, compile_step = asked
    plan = tightened(plan_within, compile_step)
    assert limits == [BUDGET, BUDGET - WASTE]
    assert plan.fits and plan.compiled.peak_bytes == BUDGET
    assert [r.correction_bytes for r in plan.rounds] == [0, WASTE]
    assert [r.compiled_peak_bytes for r in plan.rounds] == [BUDGET + WASTE, BUDGET]


def test_a_limit_that_is_too_low_gives_way_to_one_between(asked, tightened):
    limits, plan_within, compile_step = asked
    budget = BUDGET - 8 * WASTE
    least = budget - WASTE // 2

    def refusing(limit_bytes):
        if limit_bytes < least:
            limits.append(limit_bytes)
            raise InfeasibleBudgetError("Too small.", least_peak_bytes=least)
        return plan_within(limit_bytes)

    with pytest.raises(BudgetNotMetError) as caught:
        tightened(refusing, compile_step, budget=budget)
    assert limits[:3] == [budget, budget - WASTE, (least + budget) // 2]
    assert caught.value.plan.rounds[-1].limit_bytes == limits[2]


def test_where_no_lower_limit_is_feasible_other_plans_are_tried(base, asked, tightened):
    limits, plan_within, _ = asked

    def compile_step(step):
        fourth = len(limits) == 4
        return replace(base.compiled, peak_bytes=limits[-1] + (0 if fourth else WASTE))

    budget = int(0.905 * BUDGET)
    plan = tightened(plan_within, compile_step, budget=budget, varies=True)
    assert limits == [budget, budget - WASTE, budget, budget - WASTE // 2]
    assert plan.fits and len(plan.rounds) == 3


@pytest.mark.parametrize(("least", "searches"), [(1.001, 3), (1.1, 1)])
def test_a_budget_refused_by_a_hair_is_searched_again(asked, tightened, least, searches):
    _, plan_within, compile_step = asked
    budget, found = int(0.95 * BUDGET), []

    def found_late(limit_bytes):
        found.append(limit_bytes)
        if len(found) < 3:
            raise InfeasibleBudgetError("Not found.", least_peak_bytes=int(least * budget))
        plan = plan_within(limit_bytes - WASTE)
        return replace(plan, memory_budget_bytes=budget)

    if searches == 1:
        with pytest.raises(InfeasibleBudgetError):
            tightened(found_late, compile_step, budget=budget, varies=True)
    else:
        assert tightened(found_late, compile_step, budget=budget, varies=True).fits
    assert found == [budget] * searches


def test_another_order_comes_before_a_lower_limit(base, asked, tightened):
    limits, plan_within, _ = asked
    over, orders = [], []

    def reordered(plan, limit_bytes, over_bytes):
        over.append((limit_bytes, over_bytes))
        order = replace(plan, compiled=None)
        orders.append(order)
        return order

    def compile_step(step):
        waste = WASTE // 2 ** len(orders) if len(orders) < 3 else 0
        return replace(base.compiled, peak_bytes=limits[-1] + waste)

    plan = tightened(plan_within, compile_step, other_order=reordered)
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


def test_orders_end_where_there_are_no_more_and_where_there_is_none(base, asked, tightened):
    limits, plan_within, compile_step = asked
    for most_orders, found, asked_for in ((0, base, 0), (8, None, 1)):
        limits.clear()
        calls = []

        def reordered(plan, limit_bytes, over_bytes, found=found, calls=calls):
            calls.append(limit_bytes)
            return found

        plan = tightened(plan_within, compile_step, most_orders=most_orders, other_order=reordered)
        assert limits == [BUDGET, BUDGET - WASTE] and plan.fits
        assert len(calls) == asked_for


def _with_waste(base, waste):
    """Returns a search whose plans fill their limits, and are faster under larger limits, and a
    compiler whose programs waste memory."""
    limits = []

    def plan_within(limit_bytes):
        limits.append(limit_bytes)
        seconds = base.estimate.step_seconds * (2 - limit_bytes / BUDGET)
        estimate = replace(base.estimate, peak_bytes=limit_bytes, step_seconds=seconds)
        return replace(base, estimate=estimate, memory_budget_bytes=BUDGET)

    def compile_step(step):
        return replace(base.compiled, peak_bytes=limits[-1] + waste[len(limits) - 1])

    return limits, plan_within, compile_step


def test_what_was_taken_off_too_much_is_taken_back(base, tightened):
    limits, plan_within, compile_step = _with_waste(base, [4 * WASTE, 0, WASTE, WASTE])
    plan = tightened(plan_within, compile_step)
    # The second leaves 4 of the budget, which the first exceeds: a limit between, then 1 is left.
    assert [(BUDGET - limit) // WASTE for limit in limits] == [0, 4, 2, 1]
    assert plan.fits and plan.compiled.peak_bytes == BUDGET
    assert len(plan.rounds) == 4


def test_the_fastest_plan_within_the_budget_is_kept(base, tightened):
    limits, plan_within, compile_step = _with_waste(base, [4 * WASTE, 0, 3 * WASTE, 9 * WASTE])
    plan = tightened(plan_within, compile_step)
    assert [(BUDGET - limit) // WASTE for limit in limits] == [0, 4, 2, 3]
    assert plan.fits and plan.compiled.peak_bytes == BUDGET - 4 * WASTE
    assert len(plan.rounds) == 4


def test_a_plan_that_is_no_faster_is_not_compiled(base, asked, tightened):
    limits, plan_within, _ = asked

    def compile_step(step):
        return replace(
            base.compiled, peak_bytes=limits[-1] + (2 * WASTE if len(limits) == 1 else 0)
        )

    plan = tightened(plan_within, compile_step)
    assert len(limits) == 3 and len(plan.rounds) == 2 and plan.fits


def test_without_a_check_the_first_plan_within_the_budget_is_the_answer(asked, tightened):
    limits, plan_within, _ = asked
    plan = tightened(plan_within, None)
    assert limits == [BUDGET] and plan.compiled is None and len(plan.rounds) == 1


def test_without_a_check_the_estimate_is_binding(asked, tightened):
    """Heaps that are predicted to be larger than the limit count as if they were compiled."""
    limits, plan_within, _ = asked

    def wasteful(limit_bytes):
        plan = plan_within(limit_bytes)
        estimate = replace(plan.estimate, peak_bytes=limit_bytes + WASTE)
        return replace(plan, estimate=estimate)

    plan = tightened(wasteful, None)
    assert limits == [BUDGET, BUDGET - WASTE] and plan.fits and plan.compiled is None
    limits.clear()
    budget = int(0.905 * BUDGET)
    with pytest.raises(BudgetNotMetError, match=r"No plan met .* as estimated"):
        tightened(wasteful, None, budget=budget)


def test_the_nearest_plan_comes_with_the_error(asked, tightened):
    _, plan_within, compile_step = asked
    budget = int(0.905 * BUDGET)
    words = {"cause": "The compiler wastes.", "instead": ", or no"}
    with pytest.raises(BudgetNotMetError, match="No plan met") as caught:
        tightened(plan_within, compile_step, budget=budget, **words)
    error = caught.value
    assert error.plan.peak_bytes == error.least_peak_bytes == budget + WASTE
    assert error.cause == "The compiler wastes." and error.suggestion.endswith("meets, or no.")


def test_a_budget_that_no_schedule_meets_is_the_searchs_own_error(asked, tightened):
    with pytest.raises(InfeasibleBudgetError, match="so small"):
        tightened(asked[1], asked[2], budget=BUDGET // 2)


@pytest.fixture
def with_overlap(base, asked):
    """Returns the closed loop with a compiler of overlapping programs. Their peak is `more_bytes`
    higher, and each way to overlap has a factor of the step time. Half of the step is hidden. One
    per cent less memory takes one per cent more time."""
    limits, plan_within, _ = asked
    seconds = base.estimate.step_seconds
    hiding = replace(base.estimate, hidden_seconds=seconds)

    def slowdown(limit_bytes):
        return BUDGET / limit_bytes

    def run(more_bytes, slower=(1.0,)):
        def find(limit_bytes):
            found = plan_within(limit_bytes)
            slower = seconds * slowdown(limit_bytes)
            return replace(
                found, estimate=replace(hiding, peak_bytes=limit_bytes, step_seconds=slower)
            )

        def waiting(step):
            return replace(base.compiled, peak_bytes=limits[-1])

        def overlapping(step, times):
            slower = times * slowdown(limits[-1]) * base.compiled.step_seconds
            waits = (AxisSeconds(None, slower, slower),)
            time = replace(base.compiled.time, step_seconds=slower, communication=waits)
            more = more_bytes(limits[-1]) if callable(more_bytes) else more_bytes
            return replace(base.compiled, peak_bytes=limits[-1] + more, time=time)

        ways = tuple(partial(overlapping, times=times) for times in slower)
        tools = Tools(base.origin.settings, begins(waiting), tuple(map(begins, ways)))
        return ClosedLoop(
            planner_named("alpa"), LimitSearch(find, BUDGET, cause=""), BUDGET, tools
        ).run()

    return run


def test_collectives_overlap_where_the_program_has_room_for_that(asked, with_overlap):
    plan = with_overlap(0)
    assert plan.compiled.overlapping_peak_bytes == BUDGET and plan.fits
    assert asked[0] == [BUDGET]


def test_a_plan_of_less_memory_is_sought_that_has_room_for_overlap(asked, with_overlap):
    plan = with_overlap(WASTE, slower=(0.9,))
    assert plan.compiled.is_overlapping and plan.fits
    assert asked[0] == pytest.approx([BUDGET, BUDGET - WASTE - LITTLE], abs=1)


def test_a_limit_rises_again_where_the_program_needs_far_less(asked, with_overlap):
    plan = with_overlap(lambda limit: 8 * WASTE if limit == BUDGET else 0, (0.9,))
    assert plan.compiled.is_overlapping and plan.fits
    lower = 8 * WASTE + LITTLE
    assert asked[0][:3] == pytest.approx([BUDGET, BUDGET - lower, BUDGET - lower / 2], abs=1)
    assert len(asked[0]) <= 1 + shares.MOST_OVERLAP_PLANS


def test_a_limit_is_sought_between_plans_that_fit_and_those_that_do_not(asked, with_overlap):
    """Halfway, however little the last program is over the budget."""
    more = {0: 8 * WASTE, 9: 0, 4: 5 * WASTE}
    plan = with_overlap(lambda limit: more.get((BUDGET - limit) // WASTE, 0), (0.9,))
    assert plan.compiled.is_overlapping and plan.fits
    lower = 8 * WASTE + LITTLE
    lowered = [BUDGET - limit for limit in asked[0][:4]]
    assert lowered == pytest.approx([0, lower, lower / 2, 0.75 * lower], abs=2)


def test_a_limit_for_overlap_that_no_plan_meets_gives_way_to_one_between(asked, with_overlap):
    plan = with_overlap(lambda limit: 15 * WASTE if limit == BUDGET else 0, (0.9,))
    assert plan.compiled.is_overlapping and plan.fits
    lower = 15 * WASTE + LITTLE
    assert [BUDGET - limit for limit in asked[0][:3]] == pytest.approx([0, lower, lower / 2], abs=1)


@pytest.mark.parametrize("share", [0.15, 0.5])
def test_a_plan_waits_for_collectives_where_none_has_room_and_says_so(with_overlap, share):
    plan = with_overlap(int(share * BUDGET))
    assert plan.fits and not plan.compiled.is_overlapping
    assert plan.notes[-1] == NO_ROOM


def test_a_way_to_overlap_that_xla_fails_to_compile_is_left_out(base):
    """XLA:TPU refuses some reductions of uneven pieces in the background."""

    def fails(step):
        raise CompileCheckError("RET_CHECK failure")

    faster = replace(base.compiled.time, step_seconds=base.compiled.step_seconds / 2)
    program = replace(base.compiled, time=faster)
    first = Proposal(base, BUDGET)
    found = OverlapSearch(BUDGET, [fails, begins(lambda step: program)]).run(first, pytest.fail)
    assert found.plan.compiled.overlap == 1
    assert OverlapSearch(BUDGET, [begins(fails)]).run(first, pytest.fail) is None


def test_a_plan_of_less_memory_goes_without_ties(base):
    """Little overlaps across them; how far such a program is off says nothing of others."""
    parts, asked = iter((0.9, 0.5)), []
    compiled = replace(base.compiled, peak_bytes=BUDGET)

    def with_ties(steps):
        execution = replace(base.execution, tied_steps=frozenset(steps))
        estimate = replace(base.estimate, peak_bytes=BUDGET)
        return replace(base, execution=execution, estimate=estimate, compiled=compiled)

    def program(step):
        seconds = next(parts) * base.estimate.step_seconds
        return replace(compiled, time=replace(base.compiled.time, step_seconds=seconds))

    def propose(limit_bytes, most_seconds):
        asked.append((limit_bytes, most_seconds / base.estimate.step_seconds))
        return Proposal(with_ties(()), limit_bytes)

    first = Proposal(with_ties((0,)), BUDGET)
    found = OverlapSearch(BUDGET, [begins(program)]).run(first, propose)
    assert found is not None and not found.plan.execution.tied_steps
    ((limit_bytes, most),) = asked
    assert limit_bytes < BUDGET and most == pytest.approx(0.9 * shares.OVERLAP_GAIN)


def test_no_plan_of_no_memory_is_sought(base):
    """Where the program is over the budget by more than its plan needs."""
    best = replace(base, estimate=replace(base.estimate, peak_bytes=BUDGET // 4))
    program = replace(base.compiled, peak_bytes=int(1.4 * BUDGET))

    def propose(limit_bytes, seconds):
        pytest.fail(f"asked for {limit_bytes} bytes")

    search = OverlapSearch(BUDGET, [begins(lambda step: program)])
    assert search.run(Proposal(best, BUDGET), propose) is None


def test_collectives_overlap_in_the_way_whose_schedule_is_fastest(with_overlap):
    plan = with_overlap(0, slower=(0.9, 0.8, 1.2))
    waiting = with_overlap(0, slower=(9.0, 9.5))
    assert plan.compiled.overlap == 1
    assert plan.compiled.step_seconds == pytest.approx(0.8 * waiting.compiled.step_seconds)
    assert not waiting.compiled.is_overlapping and waiting.notes[-1] == NO_GAIN


def test_a_program_that_waits_for_reductions_is_estimated_so(base):
    """In the first way to overlap it does, in the second it does not."""
    estimate = replace(base.estimate, hidden_seconds=3.0, hidden_sums_seconds=1.0)
    on_tpus = replace(base.execution.facts, target=TPU.name)
    execution = replace(base.execution, kernels=replace(base.execution.kernels, facts=on_tpus))
    for way, hidden_seconds in ((0, 2.0), (2, 3.0)):
        compiled = replace(base.compiled, overlap=way)
        plan = replace(base, estimate=estimate, execution=execution, compiled=compiled)
        assert estimate_of_overlapping(plan).hidden_seconds == hidden_seconds


def test_matmuls_that_wait_for_gradients_hide_half_of_them_unless_each_runs_beside_a_kernel(base):
    estimate = replace(base.estimate, hidden_seconds=3.0, hidden_sums_seconds=1.0)
    for beside_one_kernel, hidden_seconds in ((False, 2.5), (True, 3.0)):
        facts = replace(base.execution.facts, sums_beside_one_kernel=beside_one_kernel)
        kernels = replace(base.execution.kernels, facts=facts)
        execution = replace(base.execution, kernels=kernels, gradients_in_time=True)
        compiled = replace(base.compiled, overlap=2)
        plan = replace(base, estimate=estimate, execution=execution, compiled=compiled)
        assert estimate_of_overlapping(plan).hidden_seconds == hidden_seconds


def test_a_program_waits_for_the_reductions_of_steps_in_order(base):
    """Those of two units, one of which is in order, and as much as is hidden at most."""
    first, *_ = base.execution.schedule.steps
    others = [1.0] * len(base.execution.units.units)
    hidden = {"hidden_seconds": 3.0, "hidden_sums_seconds": 2.0}
    for seconds, waits in ((0.5, 0.5), (4.0, 2.0)):
        sums = tuple(seconds if unit == first else other for unit, other in enumerate(others))
        estimate = replace(base.estimate, sums_behind=sums, **hidden)
        execution = replace(base.execution, tied_steps=frozenset({0}))
        found = estimate_of_overlapping(replace(base, estimate=estimate, execution=execution))
        assert found.hidden_seconds == 3.0 - waits
        assert found.hidden_sums_seconds == 2.0 - waits
        assert found.step_seconds == pytest.approx(base.estimate.step_seconds + waits)
