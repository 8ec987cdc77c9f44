import time
from dataclasses import replace

import pytest

from kiwi.literature.remat.annealing.anneal import PRODUCT, SHARP
from kiwi.literature.remat.annealing.tables import MOST_COPIES
from kiwi.literature.remat.fastsa import (
    AnnealingSettings,
    fastsa,
    group_operators,
    order_only,
    run_annealing,
)
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.simulate import largest_working_set, order_peak_bytes, simulate
from kiwi.solver.schedule import Schedule

from .graphs import random_general_graph, random_graph, training_chain
from .oracle import least_seconds

SHORT = (
    AnnealingSettings(20_000, first_temperature=1e-2, stop_at_budget=True),
    AnnealingSettings(20_000),
)
# One operator of five is a large part of the whole: small graphs need high temperatures.
HOT = AnnealingSettings(40_000, first_temperature=0.1)


def _task(graph, budget_bytes, seed=0):
    return Task(graph, budget_bytes, time.monotonic() + 600, 600, seed)


def _middle_budget(graph):
    return (order_peak_bytes(graph) + largest_working_set(graph).size_bytes) // 2


def _on_single_operators(graph, budget_bytes, settings):
    """Returns the simulation after an annealing at its own temperatures and a cool one, both
    without groups."""
    task = _task(graph, budget_bytes)
    first = run_annealing(task, graph, Schedule(graph.order), settings)
    heat = first.temperature
    cool = replace(SHORT[1], first_temperature=heat, last_temperature=heat * 1e-4)
    return simulate(graph, run_annealing(task, graph, first.schedule, cool).schedule)


@pytest.mark.parametrize("make", [random_graph, random_general_graph])
def test_tiny_graphs_are_planned_as_well_as_exhaustive_search_does(make):
    equal = total = 0
    for seed in range(20):
        graph = make(seed, 5)
        budget = _middle_budget(graph)
        best = least_seconds(graph, budget)
        found = _on_single_operators(graph, budget, HOT)
        if best is None:
            assert found.peak_bytes > budget
            continue
        total += 1
        if found.peak_bytes <= budget:
            assert found.compute_seconds >= best
            equal += found.compute_seconds == best
    assert total > 15
    assert equal >= 0.95 * total


@pytest.mark.parametrize("objective", [PRODUCT, SHARP])
def test_a_chain_is_recomputed_within_half_of_its_peak(objective):
    graph = training_chain(12)
    budget = order_peak_bytes(graph) // 2
    settings = replace(SHORT[0], objective=objective, moves=100_000)
    found = _on_single_operators(graph, budget, settings)
    assert found.peak_bytes <= budget
    assert found.compute_seconds <= 1.25 * graph.once_seconds


def test_groups_that_compute_an_operator_more_often_than_is_added_are_planned():
    """Every group of a long chain computes its first operators: 60 copies, more than are added."""
    graph = training_chain(60)
    grouping = group_operators(graph)
    start = grouping.expand(Schedule(grouping.graph.order))
    assert max(start.computations().values()) > MOST_COPIES
    budget = _middle_budget(graph)
    found = simulate(graph, fastsa(_task(graph, budget), *SHORT).schedule)
    assert found.peak_bytes <= budget


def test_same_seed_same_schedule():
    graph = random_graph(3, 12)
    budget = _middle_budget(graph)
    runs = [fastsa(_task(graph, budget, seed), *SHORT).schedule for seed in (1, 1)]
    assert runs[0] == runs[1]


def test_order_only_never_recomputes_and_lowers_the_peak():
    lowered = 0
    for seed in range(10):
        graph = random_graph(seed, 12)
        schedule = order_only(replace(_task(graph, 1), time_limit_seconds=0.05)).schedule
        assert sorted(schedule.steps) == list(range(12))
        peak = simulate(graph, schedule).peak_bytes
        assert peak <= order_peak_bytes(graph)
        lowered += peak < order_peak_bytes(graph)
    assert lowered > 3


def test_clock_ends_a_run():
    graph = training_chain(5)
    task = replace(_task(graph, 30), deadline=time.monotonic() - 1.0)
    outcome = run_annealing(task, graph, Schedule(graph.order), AnnealingSettings(1000))
    assert outcome.schedule.steps == graph.order
    assert not outcome.completed


def test_a_run_that_the_clock_hurries_is_not_repeatable():
    graph = training_chain(12)
    task = _task(graph, 9 * order_peak_bytes(graph) // 10)
    # so many moves that the first chunk of them is behind the clock of a millisecond anywhere
    settings = AnnealingSettings(10**9, stop_at_budget=True)
    hurried, own = (
        run_annealing(task, graph, Schedule(graph.order), settings, seconds)
        for seconds in (1e-6, 1e6)
    )
    assert hurried.within_budget and own.within_budget
    assert own.completed and not hurried.completed


@pytest.mark.parametrize("make", [random_graph, random_general_graph])
@pytest.mark.parametrize("seed", range(20))
def test_groups_expand_to_valid_schedules_within_their_peak(make, seed):
    graph = make(seed, 9)
    grouping = group_operators(graph)
    order = Schedule(grouping.graph.order)
    expanded = simulate(graph, grouping.expand(order))
    grouped = simulate(grouping.graph, order)
    assert expanded.compute_seconds == pytest.approx(grouped.compute_seconds)
    assert expanded.peak_bytes <= grouped.peak_bytes


def test_groups_recompute_a_chain_from_its_first_value():
    graph = training_chain(8)
    grouping = group_operators(graph)
    assert len(grouping.graph.operators) < len(graph.operators)
    expanded = simulate(graph, grouping.expand(Schedule(grouping.graph.order)))
    assert expanded.peak_bytes < order_peak_bytes(graph)
