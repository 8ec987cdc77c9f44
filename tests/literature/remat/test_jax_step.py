"""A real training step: its graph, planned, emitted, compiled and run."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import kiwi.api
from kiwi.literature.planners.remat_graph import one_device_strategies, remat_graph
from kiwi.literature.remat import order_peak_bytes, simulate, solve, violations
from kiwi.literature.remat.chain import linearise
from kiwi.solver.schedule import Schedule
from kiwi.xla.cpu.compiler import CPU
from tests.helpers.perceptron import step_of
from tests.helpers.planning import array

LAYERS, WIDTH, BATCH = 6, 32, 512
STEP, WEIGHTS = step_of(LAYERS, WIDTH, "tanh")


@pytest.fixture(scope="module")
def base():
    options = {"mesh_shape": (1,), "memory_budget": "1GiB", "planner": "alpa", "verify": None}
    return kiwi.api.plan(STEP, WEIGHTS, array(BATCH, WIDTH), donate_argnums=0, **options)


@pytest.fixture(scope="module")
def graph(base):
    units = base.execution.units
    return remat_graph(units, one_device_strategies(units, base.mesh, CPU.rules), CPU.rules)


def test_graph_has_one_operator_per_unit_and_all_arguments_resident(base, graph):
    assert len(graph.operators) == len(base.execution.units.units)
    assert graph.resident_bytes >= 4 * (LAYERS * WIDTH * WIDTH + BATCH * WIDTH)
    assert graph.once_seconds == pytest.approx(base.estimate.compute_seconds)


def test_what_fences_hold_is_resident(base, graph):
    units = base.execution.units
    strategies = one_device_strategies(units, base.mesh, CPU.rules)
    fenced = remat_graph(units, strategies, CPU.rules, 1000)
    assert fenced.resident_bytes == graph.resident_bytes + 1000
    assert order_peak_bytes(fenced) == order_peak_bytes(graph) + 1000


def test_only_forward_units_may_run_again_and_stages_are_found(base, graph):
    for unit, operator in zip(base.execution.units.units, graph.operators, strict=True):
        assert operator.recomputable == unit.may_recompute
    assert len(linearise(graph).forward) >= LAYERS - 1


def test_updates_wait_for_other_readers_of_what_they_overwrite(graph):
    early_update = Schedule((*graph.order[-1:], *graph.order[:-1]))
    assert violations(graph, early_update)


@pytest.mark.parametrize("planner", ["remat", "rotor"])
def test_a_planned_schedule_runs_to_the_same_result_in_less_memory(base, graph, planner):
    peak = order_peak_bytes(graph)
    budget = graph.resident_bytes + (peak - graph.resident_bytes) * 7 // 10
    result = solve(graph, budget, planner, time_limit_seconds=2.0)
    assert simulate(graph, result.schedule).peak_bytes <= budget
    planned = replace(base, execution=replace(base.execution, schedule=result.schedule))
    kept, recomputed = CPU.compile(base.step), CPU.compile(planned.step)
    assert recomputed.peak_bytes < kept.peak_bytes
    weights = list(0.1 * jax.random.normal(jax.random.key(0), (LAYERS, WIDTH, WIDTH)))
    x = jax.random.normal(jax.random.key(1), (BATCH, WIDTH))
    found = planned.step.function(*weights, x)
    for expected, result in zip(STEP(weights, x), found, strict=True):
        np.testing.assert_allclose(expected, result, rtol=1e-5, atol=1e-7)
