"""Every planner of the literature through `kiwi.plan`: its plan computes the same as the step."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.errors import CompilerUnavailableError, InvalidProblemError
from kiwi.literature.planners import PLANNERS, Pofo, Rotor
from kiwi.literature.planners.offloading import OffloadingPlanner, as_emitted
from kiwi.literature.remat.graph import single_output_graph
from kiwi.literature.remat.offload.host import IDLE, OffloadSchedule, Transfer
from kiwi.planners.registry import planner_named
from kiwi.plans.estimate import estimate_schedule, estimate_solution
from kiwi.problem.solved import Solved
from kiwi.solver.schedule import Schedule
from kiwi.xla.gpu.compiler import GPU
from tests.helpers.offloading import all_as, arrays, perceptron, solution_with
from tests.helpers.planning import array

WIDTH, ROWS = 128, 2048
VALUE_BYTES = 4 * WIDTH * ROWS
BY_CLOCK = ("checkmate", "checkmate-lp", "kiwi-full", "kiwi-reduced", "poet", "rk-checkmate")
"""Integer programs that the clock ends. They get small steps, and much more time than they need."""
LAYERS = {"offmate": 8, **dict.fromkeys(BY_CLOCK, 2)}
"""The number of layers of the step, by planner. OffMate's blocks are whole layers: with few layers
it has no choice."""
USUAL_LAYERS = 4
SHARES = {2: 0.9, 4: 0.8, 8: 0.8}
"""By number of layers, the budget that forces a choice, as a share of the memory if everything is
kept."""

FAST_LINK = replace(kiwi.mesh.hardware("v5e"), host_bandwidth_bytes_per_second=1e13)
"""A link over which copies hide behind little computation, so that offloading pays off."""


def step(ws, x):
    """Blocks with a residual connection. The inner value of a block is four times as large as its
    other values."""

    def loss(ws):
        hidden = x
        for up, down in ws:
            hidden = hidden + jnp.tanh(hidden @ up) @ down
        return (hidden**2).mean()

    value, gradient = jax.value_and_grad(loss)(ws)
    return jax.tree.map(jnp.subtract, ws, gradient), value


def arguments(layers, width=WIDTH, rows=ROWS):
    """Returns the types of the arguments."""
    return [(array(width, 4 * width), array(4 * width, width))] * layers, array(rows, width)


NAMES = [planner.name for planner in PLANNERS]
KEEPING = ("keep-all", "order-only")
"""Planners that recompute nothing, and meet no budget below the memory that the step needs."""
COPYING = [planner.name for planner in PLANNERS if isinstance(planner, OffloadingPlanner)]


def planned(planner, share=None, **options):
    """Returns the plan within a share of the memory that the step holds if it keeps everything."""
    name = planner if isinstance(planner, str) else planner.name
    layers = LAYERS.get(name, USUAL_LAYERS)
    budget = int((share or SHARES[layers]) * kept_bytes(layers))
    effort = "thorough" if name in BY_CLOCK else "quick"
    given = {"mesh_shape": (1,), "profile": FAST_LINK, "verify": None, "effort": effort}
    given |= {"plan_cache": False, "donate_argnums": 0, **options}
    return kiwi.plan(step, *arguments(layers), planner=planner, memory_budget=budget, **given)


@functools.cache
def kept_bytes(layers):
    options = {"mesh_shape": (1,), "profile": FAST_LINK, "verify": None, "donate_argnums": 0}
    return kiwi.plan(step, *arguments(layers), planner="keep-all", **options).peak_bytes


@functools.cache
def example(layers):
    types, tree = jax.tree.flatten(arguments(layers))
    keys = jax.random.split(jax.random.key(0), len(types))
    leaves = [
        jax.random.normal(key, each.shape) / WIDTH**0.5
        for key, each in zip(keys, types, strict=True)
    ]
    return leaves, jax.tree.leaves(jax.jit(step)(*jax.tree.unflatten(tree, leaves)))


def assert_computes_the_same(plan):
    leaves, wanted = example(LAYERS.get(plan.planner, USUAL_LAYERS))
    found = plan.jit(plan.mesh.jax_mesh())(*(leaf.copy() for leaf in leaves))
    for expected, result in zip(wanted, found, strict=True):
        np.testing.assert_allclose(expected, result, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in COPYING])
def test_it_is_asked_for_by_name_and_computes_the_same(name):
    plan = planned(name, 2.0 if name in KEEPING else None)
    assert plan.fits and plan.planner == name
    assert bool(plan.execution.recomputed) == (name not in KEEPING)
    assert_computes_the_same(plan)


@pytest.mark.parametrize("name", COPYING)
def test_copies_to_the_host_are_emitted_and_the_step_computes_the_same(name):
    plan = planned(name, host_memory_budget="1GiB")
    assert plan.fits and plan.planner == name and plan.execution.fetched
    assert plan.residency_counts()["offload"] == len(plan.execution.fetched)
    assert plan.estimate.host_peak_bytes >= VALUE_BYTES
    assert plan.estimate.offload_seconds > 0
    emitted = str(jax.make_jaxpr(plan.function)(*plan.step.arguments))
    assert "pinned_host" in emitted
    assert_computes_the_same(plan)


def test_the_hosts_memory_is_a_limit():
    limit = 12 * VALUE_BYTES
    plan = planned("offmate", host_memory_budget=limit)
    assert plan.fits and 0 < plan.host_peak_bytes <= limit == plan.host_limit_bytes
    free = planned("offmate")
    assert free.fits and free.host_peak_bytes > 0
    assert free.host_limit_bytes is None
    assert any("host_memory_budget limits it" in note.text for note in free.notes)


def test_without_a_host_budget_fastsa_copies_nothing():
    assert not planned("fastsa").execution.fetched


def test_a_compiler_without_host_memory_is_not_asked():
    plan = planned("pofo", verify="cpu")
    assert plan.compiled is None and plan.execution.fetched
    assert any("no host memory" in note.text for note in plan.notes)


def test_xla_for_gpus_keeps_what_is_copied_on_the_host():
    layers, width, rows = 4, 1024, 16384
    profile = replace(kiwi.mesh.hardware("h100-sxm"), host_bandwidth_bytes_per_second=1e12)
    try:
        GPU.check_available(profile)
    except CompilerUnavailableError as error:
        pytest.skip(str(error))
    options = {"mesh_shape": (1,), "profile": profile, "effort": "quick", "plan_cache": False}
    chain, given = perceptron(layers, is_scanned=False), arrays(layers, width, rows)
    free = kiwi.plan(chain, *given, planner="keep-all", verify=None, **options)
    options |= {"memory_budget": int(0.8 * free.peak_bytes), "host_memory_budget": "64GiB"}
    plan = kiwi.plan(chain, *given, planner="fastsa", verify="cuda", **options)
    assert plan.fits and plan.execution.fetched
    assert plan.compiled.peak_bytes <= plan.memory_budget_bytes
    assert plan.compiled.host_peak_bytes >= 4 * width * rows


def test_an_object_plans_with_its_parameters(tmp_path):
    coarse, fine = (planned(Rotor(slots=slots), 0.9) for slots in (60, 500))
    assert coarse.solve_result.iterations < fine.solve_result.iterations
    assert coarse.planner == fine.planner == "rotor" and fine.fits
    assert coarse.planner_parameters == {"slots": 60} and not fine.planner_parameters
    assert "rotor(slots=60)" in str(coarse) and "rotor, " in str(fine)
    coarse.save(tmp_path / "plan.json")
    options = kiwi.load_plan(tmp_path / "plan.json").document["options"]
    assert options["planner"] == "rotor" and options["planner_parameters"] == {"slots": 60}


def test_a_step_without_a_backward_pass_has_no_chain():
    with pytest.raises(InvalidProblemError, match="no backward operator"):
        kiwi.plan(
            lambda x: x @ x,
            jax.ShapeDtypeStruct((64, 64), "float32"),
            planner=Pofo(),
            mesh_shape=(1,),
        )


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
    plan = all_as(step, arguments(3), "offload")
    function = kiwi.jit(
        step, mesh_shape=(1,), profile="v5e", verify=None, host_memory_budget="64GiB"
    )
    traced = function.traced(*arguments(3))
    planner = planner_named("joint")
    problem = planner.formulate(traced, 2**30, function.settings)
    solved = Solved(problem, solution_with(problem, "offload"))
    expected = estimate_solution(solved)
    found = estimate_schedule(solved, plan.execution.schedule)
    assert found.memory_bytes == expected.memory_bytes
    assert found.peak_bytes == expected.peak_bytes
    assert found.step_seconds == expected.step_seconds
    assert found.offload_seconds == expected.offload_seconds > 0
