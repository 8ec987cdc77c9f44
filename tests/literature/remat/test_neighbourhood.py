"""Large neighbourhoods: frames, the program against exhaustive search, improvement of schedules."""

import time
from dataclasses import replace

import pytest

from kiwi.literature.remat.best import improvement
from kiwi.literature.remat.fastsa import fastsa
from kiwi.literature.remat.neighbourhood import Frame, improve, moccasin
from kiwi.literature.remat.result import Task, candidate
from kiwi.literature.remat.simulate import (
    largest_working_set,
    order_peak_bytes,
    simulate,
    violations,
)
from kiwi.solver.schedule import Schedule

from .graphs import random_general_graph, random_graph, training_chain


def _task(graph, budget_bytes, seconds=1.0):
    return Task(graph, budget_bytes, time.monotonic() + 600, seconds, 0)


def _budget(graph, tenths):
    low, high = largest_working_set(graph).size_bytes, order_peak_bytes(graph)
    return low + (high - low) * tenths // 10


def _wasteful(graph):
    """Returns a schedule in which every operator that may be recomputed runs again before each of
    its readers."""
    steps: list[int] = []
    for k in graph.order:
        for before in graph.predecessors(k):
            if graph.operators[before].recomputable:
                _again(graph, before, steps)
        steps.append(k)
    return Schedule(tuple(steps))


def _again(graph, k, steps):
    for before in graph.predecessors(k):
        if graph.operators[before].recomputable:
            _again(graph, before, steps)
    steps.append(k)


def test_a_frame_is_what_is_left_without_recomputations_of_free_operators():
    frame = Frame.of(Schedule((0, 1, 0, 2, 1, 0, 3)), [0])
    assert frame.steps == (0, 1, 2, 1, 3)
    assert frame.again == {0: [2, 4]}


@pytest.mark.parametrize("make", [random_graph, random_general_graph])
def test_with_all_operators_free_the_result_is_that_of_moccasin(make):
    better = 0
    for seed in range(25):
        graph = make(seed, 5)
        budget = _budget(graph, 5)
        start = _wasteful(graph)
        assert violations(graph, start) == []
        copies = max(start.computations().values())
        free = [k for k, operator in enumerate(graph.operators) if operator.recomputable]
        found, complete = improve(graph, start, free, budget, 1.0, 600.0)
        exact = moccasin(_task(graph, budget, 60), copies)
        if found is None:
            now = simulate(graph, start)
            assert (
                exact.schedule is None
                or now.compute_seconds <= simulate(graph, exact.schedule).compute_seconds
            )
            continue
        mine, best = simulate(graph, found), simulate(graph, exact.schedule)
        assert complete
        assert mine.peak_bytes <= budget
        assert mine.compute_seconds == best.compute_seconds
        better += 1
    assert better > 8


def test_work_ends_moccasin_and_the_same_schedule_is_found_again():
    graph = training_chain(30)
    tasks = [_task(graph, _budget(graph, 3), 0.2) for _ in range(2)]
    first, second = map(moccasin, tasks)
    assert first.deterministic and first.schedule is not None
    assert first.family_bound < candidate(tasks[0], first.schedule).seconds
    assert first == second


def test_the_clock_ends_moccasin_on_a_slow_machine():
    graph = training_chain(30)
    task = replace(_task(graph, _budget(graph, 3), 1000.0), deadline=time.monotonic() + 0.05)
    assert not moccasin(task).deterministic


def test_only_free_operators_change():
    graph = training_chain(8)
    budget = round(0.7 * order_peak_bytes(graph))
    start = _wasteful(graph)
    found, _ = improve(graph, start, [1, 2], budget, 1.0, 600.0)
    if found is not None:
        assert violations(graph, found) == []
        assert Frame.of(found, [1, 2]).steps == Frame.of(start, [1, 2]).steps


@pytest.mark.parametrize("make", [lambda: training_chain(20), lambda: random_graph(3, 60)])
def test_improvement_keeps_the_budget_and_only_saves_time(make):
    graph = make()
    budget = _budget(graph, 5)
    task = _task(graph, budget)
    start = candidate(task, fastsa(task).schedule)
    assert start.peak_bytes <= budget
    found = simulate(graph, improvement(task, start, 0.5, 600.0, 0).schedule)
    assert found.peak_bytes <= budget
    assert found.compute_seconds <= start.seconds


def test_schedules_over_the_budget_are_left_alone():
    graph = training_chain(6)
    task = _task(graph, order_peak_bytes(graph) - 1)
    kept = candidate(task, Schedule(graph.order))
    assert improvement(task, kept, 1.0, 600.0, 0).schedule == kept.schedule
