"""Planners that claim an optimum of a family, against an exhaustive search of that family."""

import time

import pytest

from kiwi.literature.remat.checkmate import (
    checkmate,
    checkmate_lp,
    rk_checkmate,
    round_kept,
    stage_graph,
)
from kiwi.literature.remat.neighbourhood import moccasin
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.simulate import (
    largest_working_set,
    live_ranges,
    order_peak_bytes,
    simulate,
)

from .graphs import random_general_graph, random_graph, training_chain
from .oracle import FIXED_ORDER, STAGES, least_seconds


def _task(graph, budget_bytes):
    return Task(graph, budget_bytes, time.monotonic() + 600, 600, 0)


def _budget(graph, tenths):
    low, high = largest_working_set(graph).size_bytes, order_peak_bytes(graph)
    return low + (high - low) * tenths // 10


def _assert_equal_to_exhaustive_search(planner, graph, budget, best):
    finding = planner(_task(graph, budget))
    assert finding.deterministic
    if best is None:
        assert finding.schedule is None
        assert finding.family_is_infeasible
        return
    found = simulate(graph, finding.schedule)
    assert found.peak_bytes <= budget
    assert found.compute_seconds == pytest.approx(best)
    assert finding.family_bound == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("planner", [checkmate, rk_checkmate, lambda task: moccasin(task, 5)])
@pytest.mark.parametrize("tenths", [2, 5, 8])
def test_equal_to_exhaustive_search_of_partitioned_stages(planner, tenths):
    for seed in range(25):
        graph = random_graph(seed, 5)
        budget = _budget(graph, tenths)
        best = least_seconds(graph, budget, STAGES)
        _assert_equal_to_exhaustive_search(planner, graph, budget, best)


@pytest.mark.parametrize("planner", [rk_checkmate, lambda task: moccasin(task, 4)])
@pytest.mark.parametrize("tenths", [2, 6])
def test_equal_to_exhaustive_search_with_several_outputs_and_temporaries(planner, tenths):
    for seed in range(25):
        graph = random_general_graph(seed, 4)
        budget = _budget(graph, tenths)
        best = least_seconds(graph, budget, STAGES)
        _assert_equal_to_exhaustive_search(planner, graph, budget, best)


@pytest.mark.parametrize("seed", range(12))
def test_moccasin_honours_its_limit_of_copies(seed):
    graph = random_graph(seed, 5)
    budget = _budget(graph, 4)
    best = least_seconds(graph, budget, STAGES, most_copies=2)
    _assert_equal_to_exhaustive_search(moccasin, graph, budget, best)


def test_checkmate_treats_outputs_together_and_never_beats_rk_checkmate():
    apart = 0
    for seed in range(30):
        graph = random_general_graph(seed, 4)
        budget = _budget(graph, 4)
        joint, separate = checkmate(_task(graph, budget)), rk_checkmate(_task(graph, budget))
        if joint.schedule is not None:
            seconds = simulate(graph, separate.schedule).compute_seconds
            assert simulate(graph, joint.schedule).compute_seconds >= seconds - 1e-9
            apart += simulate(graph, joint.schedule).compute_seconds > seconds
        else:
            apart += separate.schedule is not None
    assert apart > 0


def test_rk_checkmate_keeps_to_the_save_budget_at_the_loss():
    graph = training_chain(5)
    free = rk_checkmate(_task(graph, 60))
    saved = rk_checkmate(_task(graph, 60), loss=4, save_bytes=30)
    assert _bytes_after(graph, free.schedule, 4) > 30
    assert _bytes_after(graph, saved.schedule, 4) <= 30
    assert simulate(graph, saved.schedule).compute_seconds > graph.once_seconds
    assert saved.schedule.steps.count(4) == 1


def _bytes_after(graph, schedule, operator):
    step = schedule.steps.index(operator)
    return sum(
        graph.values[live.value].size_bytes
        for live in live_ranges(graph, schedule)
        if live.first <= step < live.last
    )


@pytest.mark.parametrize(
    ("make", "tenths"), [(random_graph, 4), (random_graph, 7), (random_general_graph, 7)]
)
def test_rounded_relaxation_is_valid_and_not_below_the_optimum(make, tenths):
    within = 0
    for seed in range(15):
        graph = make(seed, 5)
        budget = _budget(graph, tenths)
        finding = checkmate_lp(_task(graph, budget))
        if finding.schedule is None:
            continue
        found = simulate(graph, finding.schedule)
        if found.peak_bytes <= budget:
            within += 1
            assert found.compute_seconds >= least_seconds(graph, budget, FIXED_ORDER)
    assert within > 6


def test_rounding_keeps_all_or_nothing_at_the_extremes():
    graph = training_chain(3)
    stages = stage_graph(graph, joined=True)
    half = {(t, i): 0.5 for t in range(6) for i in range(t)}
    assert round_kept(stages, half, 0.4).steps == graph.order
    recomputed = round_kept(stages, half, 0.6)
    assert recomputed.steps == (0, 0, 1, 0, 1, 2, 0, 1, 2, 3, *range(5), *range(6))
    assert simulate(graph, recomputed).compute_seconds > graph.once_seconds
