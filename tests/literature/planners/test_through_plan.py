"""Every planner of the literature through `kiwi.plan`: its plan computes what the step does."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest

import kiwi
from kiwi.errors import CompilerUnavailableError, InvalidProblemError
from kiwi.literature.planners import PLANNERS, Pofo, Rotor
from kiwi.literature.planners.offloading import OffloadingPlanner, as_emitted
from kiwi.literature.remat.graph import single_output_graph
from kiwi.literature.remat.offload.host import IDLE, OffloadSchedule, Transfer
from kiwi.plans.estimate import estimate_schedule, estimate_solution
from kiwi.problem.solved import Solved
from kiwi.solver.schedule import Schedule
from kiwi.xla.gpu.compiler import GPU
from tests.helpers.offloading import all_as, arrays, perceptron, solution_with

LAYERS, WIDTH, ROWS = 3, 128, 1024
VALUE_BYTES = 4 * WIDTH * ROWS
STEP = perceptron(LAYERS, is_scanned=False)
GIVEN = arrays(LAYERS, WIDTH, ROWS)
FAST_LINK = replace(kiwi.mesh.hardware("v5e"), host_bandwidth_bytes_per_second=3e11)
"""Over which copies hide behind little computation, so that offloading pays."""

NAMES = [planner.name for planner in PLANNERS]
KEEPING = ("keep-all", "order-only")
"""These compute nothing again, and meet no budget below what the step needs."""
COPYING = [planner.name for planner in PLANNERS if isinstance(planner, OffloadingPlanner)]


def planned(planner, budget="1GiB", **options):
    given = {"mesh_shape": (1,), "profile": FAST_LINK, "verify": None, "effort": "quick"}
    given |= {"plan_cache": False, "donate_argnums": 0, **options}
    return kiwi.plan(STEP, *GIVEN, planner=planner, memory_budget=budget, **given)


@functools.cache
def kept_bytes():
    return planned("keep-all").peak_bytes


@functools.cache
def example():
    keys = jax.random.split(jax.random.key(0))
    weights = jax.random.normal(keys[0], (LAYERS, WIDTH, WIDTH)) / WIDTH**0.5
    return weights, jax.random.normal(keys[1], (ROWS, WIDTH))


def assert_computes_the_same(plan):
    weights, x = example()
    found = plan.jit(plan.mesh.jax_mesh())(weights.copy(), x)
    for expected, result in zip(jax.jit(STEP)(weights, x), found, strict=True):
        np.testing.assert_allclose(expected, result, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_asked_for_by_name_and_computes_the_same(name):
    share = 1.0 if name in KEEPING else 0.8
    plan = planned(name, int(share * kept_bytes()))
    assert plan.fits and plan.planner == name
    if name not in KEEPING:
        assert plan.execution.recomputed or plan.execution.fetched
    assert_computes_the_same(plan)


@pytest.mark.parametrize("name", COPYING)
def test_copies_to_the_host_are_emitted_and_take_less_time_than_recomputation(name):
    """Where copies hide, a schedule with them is faster than the best one without."""
    budget = int(0.7 * kept_bytes())
    plan = planned(name, budget, host_memory_budget="1GiB")
    assert plan.fits and plan.execution.fetched
    assert plan.residency_counts()["offload"] == len(plan.execution.fetched)
    assert plan.estimate.host_peak_bytes >= VALUE_BYTES
    assert plan.estimate.offload_seconds > 0
    if name != "offmate":  # Its blocks send what takes longer to compute, and run the rest again.
        recomputed = planned("rotor", budget)
        assert plan.estimate.step_seconds < recomputed.estimate.step_seconds
    text = str(jax.make_jaxpr(plan.function)(*GIVEN))
    assert "Host" in text and "Device" in text
    assert_computes_the_same(plan)


def test_the_hosts_memory_is_a_limit():
    plan = planned("poet", int(0.7 * kept_bytes()), host_memory_budget=2 * VALUE_BYTES)
    assert plan.fits and plan.host_peak_bytes <= 2 * VALUE_BYTES == plan.host_limit_bytes
    free = planned("poet", int(0.7 * kept_bytes()))
    assert free.host_limit_bytes is None
    assert any("host_memory_budget limits it" in note for note in free.notes)


def test_without_a_host_budget_fastsa_copies_nothing():
    assert not planned("fastsa", int(0.8 * kept_bytes())).execution.fetched


def test_a_compiler_without_host_memory_is_not_asked():
    plan = planned("pofo", int(0.7 * kept_bytes()), verify="cpu")
    assert plan.compiled is None and plan.execution.fetched
    assert any("no host memory" in note for note in plan.notes)


def test_xla_for_gpus_keeps_what_is_copied_on_the_host():
    step, given = perceptron(3, is_scanned=False), arrays(3, 1024, 16384)
    profile = replace(kiwi.mesh.hardware("h100-sxm"), host_bandwidth_bytes_per_second=1e12)
    options = {"mesh_shape": (1,), "profile": profile, "effort": "quick", "donate_argnums": 0}
    try:
        GPU.check_available(profile)
    except CompilerUnavailableError as error:
        pytest.skip(str(error))
    free = kiwi.plan(step, *given, planner="keep-all", verify=None, **options)
    budget = int(0.75 * free.peak_bytes)
    plan = kiwi.plan(step, *given, planner="pofo", verify="cuda", memory_budget=budget, **options)
    assert plan.fits and plan.compiled.peak_bytes <= budget
    assert plan.compiled.host_peak_bytes >= 4 * 1024 * 16384


def test_an_object_plans_with_its_parameters(tmp_path):
    budget = int(0.8 * kept_bytes())
    coarse, fine = (planned(Rotor(slots=slots), budget) for slots in (12, 500))
    assert coarse.solve_result.iterations < fine.solve_result.iterations
    assert coarse.planner == fine.planner == "rotor" and fine.fits
    assert coarse.planner_parameters == {"slots": 12} and not fine.planner_parameters
    assert "rotor(slots=12)" in str(coarse) and "rotor, " in str(fine)
    coarse.save(tmp_path / "plan.json")
    options = kiwi.load_plan(tmp_path / "plan.json").document["options"]
    assert options["planner"] == "rotor" and options["planner_parameters"] == {"slots": 12}


def test_a_step_without_a_backward_pass_has_no_chain():
    with pytest.raises(InvalidProblemError, match="no backward operator"):
        kiwi.plan(lambda x: x @ x, GIVEN[1].update(shape=(64, 64)), planner=Pofo(), mesh_shape=(1,))


def test_fetches_stand_where_their_transfers_begin():
    """Of values 0 and 1; what a fetched value is computed from again is fetched as well, and what
    nothing reads is not fetched."""
    edges = [(0, 1), (0, 3), (1, 2), (1, 4), (2, 3), (3, 4)]
    graph = single_output_graph([1.0] * 5, [1] * 5, edges)
    steps = (0, 1, 0, 2, IDLE, 3, 4)
    outward = (Transfer(0, 1, 1), Transfer(1, 3, 3))
    inward = (Transfer(0, 4, 4), Transfer(1, 5, 5))
    found, fetched = as_emitted(graph, OffloadSchedule(steps, outward, inward))
    assert fetched == {0, 1}
    assert found == Schedule((0, 1, 2, 0, 1, 3, 4))


def test_a_schedule_with_fetches_is_estimated_as_the_solution_that_it_is_of():
    plan = all_as(STEP, GIVEN, "offload")
    function = kiwi.jit(
        STEP, mesh_shape=(1,), profile="v5e", verify=None, host_memory_budget="64GiB"
    )
    step = function.traced(*GIVEN)
    planner = kiwi.planners.registry.planner_named("joint")
    problem = planner.formulate(step, 2**30, function.settings)
    solved = Solved(problem, solution_with(problem, "offload"))
    expected = estimate_solution(solved)
    found = estimate_schedule(solved, plan.execution.schedule)
    assert found.memory_bytes == expected.memory_bytes
    assert found.peak_bytes == expected.peak_bytes
    assert found.step_seconds == expected.step_seconds
    assert found.offload_seconds == expected.offload_seconds > 0
