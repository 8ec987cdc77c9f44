"""FastSA with fetches: sequences stay consistent, and solutions of small graphs are close to POET's
optimum."""

import time

import numpy as np
import pytest

from kiwi.literature.remat.annealing.memory import peak_bytes
from kiwi.literature.remat.annealing.moves import ADD, FLIP_FETCH, REMOVE, ROTATE, propose
from kiwi.literature.remat.annealing.sequence import load, make_state, roll_back, steps_of
from kiwi.literature.remat.annealing.tables import make_tables
from kiwi.literature.remat.fastsa import fastsa
from kiwi.literature.remat.offload.fastsa import fastsa_offload, with_fetches
from kiwi.literature.remat.offload.host import Host
from kiwi.literature.remat.offload.poet import poet
from kiwi.literature.remat.offload.simulate import simulate, violations
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.simulate import largest_working_set, order_peak_bytes
from kiwi.literature.remat.simulate import simulate as simulate_plain
from kiwi.solver.schedule import Schedule

from ..graphs import random_graph, training_chain

FAST = Host(1e9, 1e9)


def _task(graph, budget_bytes, seconds=0.2):
    return Task(graph, budget_bytes, time.monotonic() + 600, seconds, 0)


def _naive_peak(graph, steps):
    """Returns the peak of a sequence. A fetch makes a copy, like a computation, of a value that was
    computed before."""
    count, peak, made = len(graph.operators), 0, {}
    held = [0] * len(steps)

    def add(value, until):
        for t in range(made[value], until + 1):
            held[t] += graph.values[value].size_bytes

    last = {}
    for t, k in enumerate(steps):
        reads, writes = ((), (k - count,)) if k >= count else graph_sides(graph, k)
        for value in reads:
            last[value] = t
        for value in writes:
            assert k < count or value in made, "fetched before it was computed"
            if value in made:
                add(value, last[value])
            made[value] = last[value] = t
    for value in made:
        add(value, len(steps) - 1 if value in graph.results else last[value])
    return max([peak, *held])


def graph_sides(graph, operator):
    return graph.operators[operator].inputs, graph.operators[operator].outputs


@pytest.mark.parametrize("seed", range(4))
def test_memory_and_time_follow_moves_with_fetches(seed):
    graph = random_graph(seed, 9)
    fetched = {v: 0.5 for v in range(9)}
    tables = make_tables(graph, Schedule(graph.order), fetched)
    state = make_state(tables, 256, seed)
    load(tables, state, np.array(graph.order, np.int32))
    for move in range(600):
        kind = (ADD, FLIP_FETCH, REMOVE, FLIP_FETCH, ROTATE)[move % 5]
        if not propose(tables, state, kind):
            continue
        if move % 7 == 0:
            roll_back(tables, state)
        steps = steps_of(state).tolist()
        seconds = sum(graph.operators[k].compute_seconds for k in steps if k < 9)
        assert state.seconds[0] == pytest.approx(seconds + 0.5 * sum(k >= 9 for k in steps))
        assert peak_bytes(state.memory) == _naive_peak(graph, steps)
        found = with_fetches(_task(graph, 10**6), FAST, Schedule(tuple(steps)), list(fetched))
        assert violations(graph, FAST, found) == []
    assert any(k >= 9 for k in steps)


def test_near_the_optimum_by_stages():
    offloaded, within, equal = 0, 0, 0
    for seed in range(12):
        graph, host = random_graph(seed, 6), Host(4.0, 4.0)
        low, high = largest_working_set(graph).size_bytes, order_peak_bytes(graph)
        budget = low + (high - low) * (2 + seed % 6) // 10
        best = poet(_task(graph, budget, 60.0), host)
        found = simulate(graph, host, fastsa_offload(_task(graph, budget, 0.1), host).schedule)
        offloaded += bool(best.schedule and best.schedule.outward)
        if best.schedule is not None and found.peak_bytes <= budget:
            within += 1
            equal += found.seconds <= best.family_bound + 1e-6
    assert (offloaded, within, equal) == (4, 11, 11)


def test_faster_than_recomputation_where_the_link_is_fast():
    graph = training_chain(10)
    budget = order_peak_bytes(graph) * 6 // 10
    plain = simulate_plain(graph, fastsa(_task(graph, budget)).schedule)
    first, again = (fastsa_offload(_task(graph, budget), Host(6.0, 6.0)) for _ in range(2))
    assert first == again and first.deterministic
    found = simulate(graph, Host(6.0, 6.0), first.schedule)
    assert found.peak_bytes <= budget
    assert found.seconds < plain.compute_seconds - 1
    slow = simulate(
        graph, Host(0.01, 0.01), fastsa_offload(_task(graph, budget), Host(0.01, 0.01)).schedule
    )
    assert slow.seconds == plain.compute_seconds
