"""Planners of recomputation alone, through `kiwi.plan`."""

from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest

import kiwi
from kiwi.emit.barriers import barriers
from kiwi.errors import InfeasibleBudgetError, InvalidMeshError, UnknownPlannerError
from kiwi.literature.planners.one_device import (
    MORE_FENCES,
    in_another_order,
    pointer_bytes,
    scheduled,
    steps_of,
)
from kiwi.literature.planners.remat_graph import one_device_strategies, remat_graph
from kiwi.literature.remat import simulate, solve
from kiwi.memory.order_search import needed_bytes
from kiwi.planners.registry import planner_named
from kiwi.plans.estimate import estimate_schedule
from kiwi.solver.schedule import Schedule
from tests.helpers.on_cpu import ON_CPU
from tests.helpers.perceptron import step_of
from tests.helpers.planning import array

LAYERS, WIDTH, BATCH = 6, 32, 512
STEP, WEIGHTS = step_of(LAYERS, WIDTH, "tanh")
X = array(BATCH, WIDTH)


def _planned(planner, budget, **options):
    given = {
        "mesh_shape": (1,),
        "profile": ON_CPU,
        "verify": "cpu",
        "time_limit_seconds": 6.0,
        "donate_argnums": 0,
    }
    options = given | options
    return kiwi.jit(STEP, planner=planner, memory_budget=budget, **options)


def _plan(planner, budget, **options):
    return _planned(planner, budget, **options).plan(WEIGHTS, X)


@pytest.fixture(scope="module")
def kept():
    return _plan("keep-all", "1GiB")


@pytest.mark.parametrize("planner", ["fastsa", "hiremate", "remat", "rotor"])
def test_the_compiled_program_meets_the_budget_and_computes_the_same(kept, planner):
    budget = int(0.9 * kept.compiled.peak_bytes)
    plan = _plan(planner, budget)
    assert plan.fits
    assert plan.compiled.peak_bytes <= budget < kept.compiled.peak_bytes
    assert plan.planner == plan.solve_result.solver == planner
    assert plan.residency_counts()["recompute"] > 0
    assert plan.estimate.recompute_seconds > 0
    assert plan.rounds[-1].compiled_peak_bytes == plan.compiled.peak_bytes
    assert planner in str(plan)
    weights = list(0.1 * jax.random.normal(jax.random.key(0), (LAYERS, WIDTH, WIDTH)))
    x = jax.random.normal(jax.random.key(1), (BATCH, WIDTH))
    found = plan.step.function(*weights, x)
    for expected, result in zip(STEP(weights, x), found, strict=True):
        np.testing.assert_allclose(expected, result, rtol=1e-5, atol=1e-7)


def test_an_infeasible_budget_names_a_feasible_one_and_a_bound(kept):
    with pytest.raises(InfeasibleBudgetError) as caught:
        _plan("remat", 100_000, verify=None)
    error = caught.value
    assert 100_000 < error.least_peak_bound_bytes <= error.least_peak_bytes
    assert _plan("remat", error.least_peak_bytes, verify=None).fits


def test_arguments_in_host_memory_are_not_resident():
    resident = []
    for kinds in ({}, {"x": "pinned_host"}):
        constraints = kiwi.Constraints(memory_kinds=kinds)
        plan = _plan("keep-all", "1GiB", verify=None, constraints=constraints)
        strategies = one_device_strategies(plan.execution.kernels, plan.mesh)
        graph = remat_graph(plan.execution.kernels, strategies)
        resident.append(graph.resident_bytes)
    assert resident[0] - resident[1] == 4 * BATCH * WIDTH


def _step_of(share):
    """Returns the step to schedule within a share of its peak, and that limit in bytes."""
    planned = _planned("keep-all", "1GiB")
    to_plan, settings = planned.traced(WEIGHTS, X), planned.settings
    step = planner_named("keep-all").to_schedule(to_plan, 2**30, settings)
    limit = int(share * simulate(step.graph, Schedule(step.graph.order)).peak_bytes)
    return replace(step, base=replace(step.base, memory_budget_bytes=limit)), limit


def test_another_order_costs_nothing():
    step, limit = _step_of(0.8)
    graph = step.graph
    plan = scheduled(step, solve(graph, limit, "rotor"), limit)
    found = [in_another_order(step, plan, limit, limit // 4, seed) for seed in range(3)]
    others = [other for other in found if other is not None]
    assert others
    for other in others:
        before, after = plan.execution.schedule, other.execution.schedule
        assert Counter(after.steps) == Counter(before.steps) and after != before
        assert other.estimate.step_seconds == plan.estimate.step_seconds
        assert other.estimate.recompute_seconds == plan.estimate.recompute_seconds
        assert simulate(graph, after).peak_bytes <= limit
        needed = [needed_bytes(steps_of(graph, each, step.details)) for each in (after, before)]
        assert needed[0] <= needed[1]


def test_a_schedule_is_priced_with_the_tuples_that_it_needs(kept):
    """Not with the room that was left for them in the graph that is scheduled."""
    step, limit = _step_of(0.8)
    plan = scheduled(step, solve(step.graph, limit, "rotor"), limit)
    own = [pointer_bytes(each.execution) for each in (kept, plan)]
    assert own[0] < own[1] and own[0] < step.pointer_bytes == int(MORE_FENCES * own[0])
    without = estimate_schedule(step.solved, plan.execution.schedule)
    assert plan.estimate.peak_bytes == without.peak_bytes + own[1]


def test_pointers_are_those_of_fences_and_results(kept):
    results = len(kept.execution.units.graph.program.results)
    assert pointer_bytes(kept.execution) - barriers(kept.execution).pointer_bytes == 8 * results


def test_several_devices_and_unknown_names_are_refused():
    with pytest.raises(InvalidMeshError, match="one device"):
        _plan("remat", "1GiB", mesh_shape=(2,))
    with pytest.raises(UnknownPlannerError, match="rockmate"):
        _plan("simplex", "1GiB")
