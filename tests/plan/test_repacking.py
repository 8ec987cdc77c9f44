"""Orders that waste less of the heap, at the same time."""

import random
from collections import Counter

import pytest

from kiwi.plan import repacking
from kiwi.plan.repacking import heap_bytes, repacked, swapped_bytes
from kiwi.solver.remat import order_peak_bytes, simulate, single_output_graph
from kiwi.solver.remat.simulate import live_ranges
from kiwi.solver.schedule import Schedule


@pytest.fixture(autouse=True)
def _few_tries(monkeypatch):
    monkeypatch.setattr(repacking, "MOST_TRIES", 400)


def _graph(seed, operators=40):
    draw = random.Random(seed)
    edges = [(k - draw.randint(1, min(k, 8)), k) for k in range(1, operators) for _ in range(2)]
    sizes = [draw.choice((1, 1, 2, 4, 7)) for _ in range(operators)]
    return single_output_graph([float(k % 3) for k in range(operators)], sizes, edges)


def _recomputing(graph):
    """Each operator in turn, every fifth with what it reads computed again just before."""
    steps = []
    for k in graph.order:
        steps += [*graph.predecessors(k), k] if k % 5 == 4 else [k]
    return Schedule(tuple(steps))


@pytest.mark.parametrize("seed", range(6))
def test_the_same_computations_in_no_larger_a_heap(seed):
    graph = _graph(seed)
    before = _recomputing(graph)
    peak = simulate(graph, before).peak_bytes
    after = repacked(graph, before, peak, 0)
    assert Counter(after.steps) == Counter(before.steps)
    assert simulate(graph, after).peak_bytes <= peak
    assert simulate(graph, after).peak_bytes <= heap_bytes(graph, after)
    assert _worst(graph, after) <= _worst(graph, before)


def _swapped(graph, schedule):
    memory = simulate(graph, schedule).memory_bytes
    return swapped_bytes(graph, schedule, memory, live_ranges(graph, schedule))


def _worst(graph, schedule):
    return max(heap_bytes(graph, schedule), *_swapped(graph, schedule))


@pytest.mark.parametrize("seed", range(6))
def test_what_neighbours_need_in_the_other_order(seed):
    graph = _graph(seed)
    steps = graph.order
    expected = []
    for k in range(len(steps) - 1):
        if steps[k] not in graph.predecessors(steps[k + 1]):
            swapped = (*steps[:k], steps[k + 1], steps[k], *steps[k + 2 :])
            memory = simulate(graph, Schedule(swapped)).memory_bytes
            expected.append(max(memory[k : k + 2]))
    assert expected and _swapped(graph, Schedule(steps)) == expected


def test_some_heaps_shrink_and_those_within_the_budget_stay():
    shrunk = 0
    for seed in range(4):
        graph = _graph(seed)
        before = _recomputing(graph)
        heap, limit = heap_bytes(graph, before), 2 * order_peak_bytes(graph)
        assert repacked(graph, before, limit, 2 * heap) is before
        shrunk += heap_bytes(graph, repacked(graph, before, limit, 0)) < heap
    assert shrunk >= 2
