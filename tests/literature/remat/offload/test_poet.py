"""POET's integer program against exhaustive search of its schedules."""

import time
from dataclasses import replace

import pytest

from kiwi.literature.remat.checkmate import rk_checkmate
from kiwi.literature.remat.offload.host import Host
from kiwi.literature.remat.offload.poet import Energy, poet
from kiwi.literature.remat.offload.simulate import simulate
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.simulate import largest_working_set, order_peak_bytes

from ..graphs import random_graph, training_chain
from .oracle import least_by_stages


def _task(graph, budget_bytes):
    return Task(graph, budget_bytes, time.monotonic() + 600, 600, 0)


def _again(graph, schedule):
    return len(schedule.steps) - len(graph.operators)


@pytest.mark.parametrize("memory_bytes", [None, 8])
def test_equal_to_exhaustive_search_by_stages(memory_bytes):
    offloaded = 0
    host = Host(4.0, 3.0, memory_bytes)
    for seed in range(14):
        graph = random_graph(seed, 5)
        low, high = largest_working_set(graph).size_bytes, order_peak_bytes(graph)
        budget = low + (high - low) * (seed % 3) // 3
        best = least_by_stages(graph, host, budget, 1)
        finding = poet(_task(graph, budget), host)
        if finding.schedule is None:
            assert best is None and finding.family_is_infeasible
            continue
        found = simulate(graph, host, finding.schedule)
        assert found.peak_bytes <= budget
        assert memory_bytes is None or found.host_peak_bytes <= memory_bytes
        assert found.seconds == pytest.approx(finding.family_bound, abs=1e-6)
        assert best is None or found.seconds <= best + 1e-6
        if _again(graph, finding.schedule) <= 1:
            assert found.seconds == pytest.approx(best, abs=1e-6)
        offloaded += bool(finding.schedule.outward)
    assert offloaded > 3


def test_never_slower_than_recomputation_alone():
    graph = training_chain(4)
    for budget, gain in ((30, 0.0), (40, 0.5)):
        plain = rk_checkmate(_task(graph, budget)).family_bound
        slow, fast = (poet(_task(graph, budget), Host(rate, rate)) for rate in (0.01, 100.0))
        assert slow.family_bound == pytest.approx(plain)
        assert fast.family_bound <= plain - gain + 1e-6


def test_energy_is_least_within_the_deadline():
    graph, host = training_chain(4), Host(2.0, 2.0)
    task = _task(graph, 40)
    cheap = Energy(compute_watts=10.0, joules_per_byte=0.01)
    paging = poet(task, host, cheap)
    assert paging.family_bound == pytest.approx(10.0 * 12 + 0.01 * 20)
    slow = simulate(graph, host, paging.schedule).seconds
    dear = poet(task, host, replace(cheap, joules_per_byte=10.0))
    assert dear.schedule.outward == ()
    quick = simulate(graph, host, dear.schedule).seconds
    assert quick < slow
    hurried = poet(task, host, replace(cheap, deadline_seconds=(quick + slow) / 2))
    assert hurried.family_bound > paging.family_bound
    assert simulate(graph, host, hurried.schedule).seconds <= (quick + slow) / 2 + 1e-6
