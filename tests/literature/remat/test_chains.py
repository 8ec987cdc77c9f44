"""Planners for chains: linearisation, Rotor against exhaustive search, Rockmate."""

import time
from dataclasses import replace

import pytest

from kiwi.errors import InvalidProblemError
from kiwi.literature.remat.chain import linearise, make_chain, stage_borders
from kiwi.literature.remat.graph import single_output_graph
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.rockmate import block_graph, rockmate
from kiwi.literature.remat.rotor import rotor, solve_chain
from kiwi.literature.remat.simulate import (
    largest_working_set,
    order_peak_bytes,
    simulate,
    violations,
)
from kiwi.solver.schedule import Schedule

from .graphs import random_chain, random_graph, random_training_graph, residual_chain
from .persistent import persistent_schedules


def _task(graph, budget_bytes):
    return Task(graph, budget_bytes, time.monotonic() + 600, 20, 0)


def _budget(graph, tenths):
    low, high = largest_working_set(graph).size_bytes, order_peak_bytes(graph)
    return low + (high - low) * tenths // 10


def persistent_simulations(graph):
    """Yields all persistent schedules of a `random_chain`, each one simulated."""
    return (simulate(graph, Schedule(steps)) for steps in persistent_schedules(graph))


def least_persistent_seconds(graph, budget_bytes):
    """Returns the least time over all persistent schedules within the budget; None if there is
    none."""
    found = persistent_simulations(graph)
    return min((f.compute_seconds for f in found if f.peak_bytes <= budget_bytes), default=None)


@pytest.mark.parametrize(("stages", "graphs"), [(1, 5), (2, 20), (4, 30), (5, 20), (6, 8), (8, 1)])
def test_rotor_equals_exhaustive_search_of_persistent_schedules(stages, graphs):
    feasible = 0
    for seed in range(graphs):
        graph = random_chain(seed, stages)
        budget = _budget(graph, 2 + seed % 6)
        best = least_persistent_seconds(graph, budget)
        finding = rotor(_task(graph, budget))
        found = simulate(graph, finding.schedule)
        if best is None:
            assert finding.family_is_infeasible
            least = min(each.peak_bytes for each in persistent_simulations(graph))
            assert found.peak_bytes == least > budget
            continue
        feasible += 1
        assert found.peak_bytes <= budget
        assert found.compute_seconds == best
    assert feasible >= graphs // 2


@pytest.mark.parametrize("units", [3, 10, 50])
def test_coarse_units_lose_schedules_but_never_break_the_budget(units):
    within = 0
    for seed in range(10):
        graph = random_chain(seed, 5)
        budget = _budget(graph, 6)
        chain = make_chain(graph)
        finding = solve_chain(_task(graph, budget), chain, most_units=units)
        found = simulate(graph, finding.schedule)
        if found.peak_bytes <= budget:
            within += 1
            assert found.compute_seconds >= least_persistent_seconds(graph, budget)
        else:
            assert not finding.family_is_infeasible
    assert within


def test_rockmate_is_at_least_as_good_as_rotor_and_sometimes_better():
    better = 0
    for seed in range(3):
        graph = residual_chain(seed, 4)
        for tenths in (2, 5):
            budget = _budget(graph, tenths)
            plain = simulate(graph, rotor(_task(graph, budget)).schedule)
            found = simulate(graph, rockmate(_task(graph, budget)).schedule)
            if plain.peak_bytes > budget:
                assert found.peak_bytes <= plain.peak_bytes
                better += found.peak_bytes <= budget
                continue
            assert found.peak_bytes <= budget
            assert found.compute_seconds <= plain.compute_seconds
            better += found.compute_seconds < plain.compute_seconds
    assert better > 2


def test_identical_blocks_are_recognised():
    graph = residual_chain(0, 4)
    borders = stage_borders(graph)
    different = {block_graph(borders, s) for s in borders.stages}
    assert len(different) < len(borders.stages)


def test_rockmate_tells_that_the_clock_left_blocks_out():
    graph = residual_chain(0, 3)
    task = _task(graph, _budget(graph, 5))
    assert rockmate(task).deterministic
    assert not rockmate(replace(task, deadline=time.monotonic())).deterministic


@pytest.mark.parametrize("planner", [rotor, rockmate])
def test_graphs_without_known_backward_operators_are_refused(planner):
    with pytest.raises(InvalidProblemError, match="no backward operator"):
        planner(_task(random_graph(0), 100))


@pytest.mark.parametrize(("planner", "graphs"), [(rotor, 12), (rockmate, 1)])
def test_skip_connections_between_far_stages_keep_schedules_valid(planner, graphs):
    recomputed = 0
    for seed in range(graphs):
        graph = random_training_graph(seed, 7)
        for tenths in (7, 9, 14):
            budget = order_peak_bytes(graph) * tenths // 10
            finding = planner(_task(graph, budget))
            assert violations(graph, finding.schedule) == []
            if simulate(graph, finding.schedule).peak_bytes <= budget:
                recomputed += len(finding.schedule.steps) > len(graph.operators)
    assert recomputed


def test_a_chain_is_linearised_into_its_stages():
    groups = linearise(random_chain(0, 4))
    assert groups.forward == ((0,), (1,), (2,), (3,))
    assert groups.backward == ((7,), (6,), (5,), (4,))
    assert groups.common == ()


def test_residual_branches_stay_in_one_group_and_masks_are_common():
    # mask | a -> b -> add(a, b) -> c, with the mask read by b and c; backward of a, b, add, c.
    edges = [(1, 2), (0, 2), (1, 3), (2, 3), (3, 4), (0, 4), (4, 5), (5, 6), (6, 7), (6, 8), (7, 8)]
    pairs = ((4, 5), (3, 6), (2, 7), (1, 8))
    graph = single_output_graph([1.0] * 9, [1] * 9, edges, backward_of=pairs)
    groups = linearise(graph)
    assert groups.common == (0,)
    assert groups.forward == ((1,), (2, 3), (4,))
    assert groups.backward == ((8,), (6, 7), (5,))
