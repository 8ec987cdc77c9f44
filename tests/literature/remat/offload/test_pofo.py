"""POFO: its dynamic program against all blocks, its schedules against exhaustive search."""

import time

import pytest

from kiwi.errors import InfeasibleBudgetError, InvalidArgumentError, UnknownPlannerError
from kiwi.literature.remat.chain import make_chain
from kiwi.literature.remat.offload.host import Host
from kiwi.literature.remat.offload.pofo import best_blocks, pofo
from kiwi.literature.remat.offload.simulate import simulate
from kiwi.literature.remat.offload.solve import solve_offload
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.rotor import RotorTable, rotor
from kiwi.literature.remat.simulate import largest_working_set, order_peak_bytes
from kiwi.literature.remat.simulate import simulate as simulate_plain

from ..graphs import random_chain, training_chain
from .oracle import least_of_blocks, least_persistent


def _task(graph, budget_bytes):
    return Task(graph, budget_bytes, time.monotonic() + 600, 20, 0)


def _budget(graph, tenths):
    low, high = largest_working_set(graph).size_bytes, order_peak_bytes(graph)
    return low + (high - low) * tenths // 10


@pytest.mark.parametrize("rates", [(2.0, 2.0), (0.5, 4.0), (20.0, 20.0)])
def test_blocks_are_the_best_of_all(rates):
    host, sent = Host(*rates), 0
    for seed in range(10):
        graph = random_chain(seed, 5)
        chain = make_chain(graph)
        budget = _budget(graph, 3 + seed % 5) - chain.resident_bytes
        table = RotorTable(chain, 1, budget)
        best = least_of_blocks(table, budget, graph, host)
        found = best_blocks(table, budget, graph, host)
        if found is None:
            assert best == float("inf")
            continue
        assert found.seconds == pytest.approx(best)
        sent += any(block.sent for block in found.blocks)
    assert sent > 2


def test_schedules_against_exhaustive_search_of_one_value_away():
    host, known, within, as_good = Host(3.0, 3.0), 0, 0, 0
    for seed in range(20):
        graph = random_chain(seed, 4)
        budget = _budget(graph, 3 + seed % 5)
        best = least_persistent(graph, host, budget, 1)
        found = simulate(graph, host, pofo(_task(graph, budget), host).schedule)
        known += best is not None
        if best is not None and found.peak_bytes <= budget:
            within += 1
            as_good += found.seconds <= best + 1e-9
            assert found.seconds <= 1.1 * best
    # A block's values move together, so that it may miss what a single value of one can do.
    assert (known, within, as_good) == (19, 18, 16)


def test_at_most_as_long_as_recomputation_alone():
    graph, gained = training_chain(12), 0
    for budget in (40, 60, 80, 100):
        task = _task(graph, budget)
        plain = simulate_plain(graph, rotor(task).schedule)
        found = solve_offload(graph, Host(5.0, 5.0), budget, "pofo").simulation
        assert found.peak_bytes <= budget
        assert found.seconds <= plain.compute_seconds
        gained += found.seconds < plain.compute_seconds - 2
    assert gained >= 2


def test_what_cannot_be_answered():
    graph, host = training_chain(4), Host(1.0, 1.0)
    with pytest.raises(InfeasibleBudgetError) as error:
        solve_offload(graph, host, 20, "pofo")
    assert error.value.least_peak_bytes == 30
    with pytest.raises(UnknownPlannerError, match="offloads"):
        solve_offload(graph, host, 20, "rotor")
    with pytest.raises(InvalidArgumentError):
        solve_offload(graph, host, 0, "pofo")
