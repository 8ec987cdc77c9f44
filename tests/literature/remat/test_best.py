import time
from dataclasses import replace

import pytest

from kiwi.literature.remat.best import remat
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.simulate import largest_working_set, order_peak_bytes, simulate
from kiwi.literature.remat.solve import Search, solve

from .graphs import random_general_graph, random_graph, training_chain
from .oracle import least_seconds


def _task(graph, budget_bytes, time_limit_seconds=0.4, seed=0):
    """Returns a task that the clock does not end: the time limit only plans the length of
    searches."""
    return Task(graph, budget_bytes, time.monotonic() + 600, time_limit_seconds, seed)


@pytest.mark.parametrize("make", [random_graph, random_general_graph])
def test_tiny_graphs_are_planned_as_well_as_exhaustive_search_does(make):
    for seed in range(15):
        graph = make(seed, 5)
        budget = (order_peak_bytes(graph) + largest_working_set(graph).size_bytes) // 2
        best = least_seconds(graph, budget)
        found = simulate(graph, remat(_task(graph, budget)).schedule)
        if best is None:
            assert found.peak_bytes > budget
        else:
            assert found.peak_bytes <= budget
            assert found.compute_seconds == best


def test_without_need_nothing_is_recomputed_and_no_move_made():
    graph = training_chain(4)
    finding = remat(_task(graph, order_peak_bytes(graph)))
    assert finding.schedule.steps == graph.order
    assert finding.iterations == 0


def test_same_seed_same_schedule():
    graph = random_graph(5, 20)
    budget = (order_peak_bytes(graph) + largest_working_set(graph).size_bytes) // 2
    first, second = (remat(_task(graph, budget, seed=3)) for _ in range(2))
    assert first.schedule == second.schedule
    assert first.deterministic


@pytest.mark.parametrize("share", [0.8, 0.4])
def test_long_chain_at_least_as_good_as_fastsa(share):
    graph = training_chain(40)
    budget = round(share * order_peak_bytes(graph))
    ours = solve(graph, budget, "remat", time_limit_seconds=3.0)
    assert ours.peak_bytes <= budget
    assert ours.compute_seconds <= solve(graph, budget, "fastsa", 3.0).compute_seconds


def test_a_search_goes_on_from_what_the_last_one_found():
    graph = training_chain(40)
    tight, wide = (round(share * order_peak_bytes(graph)) for share in (0.4, 0.45))
    task = _task(graph, tight, 1.0)
    long = remat(task).schedule
    before = simulate(graph, long)
    assert before.peak_bytes <= tight
    over = replace(task, deadline=time.monotonic())
    assert simulate(graph, remat(over).schedule).peak_bytes > tight
    assert remat(replace(over, start=long)).schedule == long
    for budget in (tight, wide):
        going_on = simulate(graph, remat(replace(task, budget_bytes=budget, start=long)).schedule)
        assert going_on.peak_bytes <= budget
        assert going_on.compute_seconds <= before.compute_seconds


def test_searches_of_one_graph_remember_their_schedules():
    graph = training_chain(40)
    budget = round(0.5 * order_peak_bytes(graph))
    search = Search(graph, "remat", 0.5)
    first, second = (search.within(budget, seed) for seed in (0, 1))
    assert second.compute_seconds <= first.compute_seconds
    assert Search(graph, "remat", 0.5).within(budget, 0).schedule == first.schedule
