"""Emitted functions compute the same as the original, for every feasible solution."""

import dataclasses
import functools
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import kiwi
from benchmarks.programs.random_plans import random_kept_copies, random_solution, with_random_ties
from examples import convnet, gpt, mlp
from kiwi.campaign.obvious_starts import obvious_starts
from kiwi.emit.barriers import barriers
from kiwi.emit.execution import Execution, build_execution, recomputation_schedule
from kiwi.emit.interpreter import emit
from kiwi.hlo.program import Program
from kiwi.mesh import TensorSharding
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved
from kiwi.solver import evaluate
from kiwi.xla.cpu.compiler import CPU_COMPILER_OPTIONS
from kiwi.xla.step import Step
from tests.helpers.planning import array, flat, problem_of, random_arrays, units_of

MODELS = {
    "mlp": (mlp, mlp.MlpConfig(layers=2, width=16, batch=16)),
    "gpt": (gpt, gpt.GptConfig(layers=1, width=16, heads=4, batch=8, sequence=8)),
    "convnet": (convnet, dataclasses.replace(convnet.SIZES["tiny"], stages=(8,))),
}


@functools.cache
def planning_of(name: str, mesh_shape: tuple[int, ...], donate: bool) -> PlanningProblem:
    module, config = MODELS[name]
    leaves, tree = flat_arguments(name)
    step = module.make_train_step(config)
    state_size = len(jax.tree.leaves(module.abstract_state(config)))
    units = units_of(
        lambda *args: step(*jax.tree.unflatten(tree, args)),
        *[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves],
        donated=range(state_size) if donate else (),
    )
    # As the planner does: a result lies where the argument lies whose buffer it takes over.
    program = units.graph.program
    carried = {
        position: program.arguments.index(units.aliased_results[result])
        for position, result in enumerate(program.results)
        if isinstance(result, int) and result in units.aliased_results
    }
    return problem_of(units, mesh_shape, carried=carried)


@functools.cache
def flat_arguments(name: str) -> tuple[list[Any], Any]:
    module, config = MODELS[name]
    return jax.tree.flatten((module.make_state(config, 1), module.make_batch(config, 2)))


@functools.cache
def expected_results(name: str) -> list[np.ndarray]:
    module, config = MODELS[name]
    state, batch = jax.tree.unflatten(flat_arguments(name)[1], flat_arguments(name)[0])
    return [
        np.asarray(x)
        for x in jax.tree.leaves(jax.jit(module.make_train_step(config))(state, batch))
    ]


def jitted(planning: PlanningProblem, execution: Execution) -> Any:
    program = planning.units.graph.program
    mesh = planning.mesh
    donated = planning.units.donated_arguments
    step = Step(
        emit(execution),
        [program.values[a].shape_dtype for a in program.arguments],
        mesh,
        [mesh.partition_spec(s) for s in execution.argument_shardings],
        [mesh.partition_spec(s) for s in execution.result_shardings if s is not None],
        tuple(k for k, a in enumerate(program.arguments) if a in donated),
    )
    return step.jit(mesh.jax_mesh(), CPU_COMPILER_OPTIONS)


CASES = [
    *[("mlp", (2, 4), seed, seed % 2 == 0) for seed in range(8)],
    *[("mlp", (8,), seed, False) for seed in range(8, 10)],
    *[("mlp", (2, 2, 2), seed, True) for seed in range(10, 12)],
    ("gpt", (2, 4), 12, True),
    pytest.param("gpt", (2, 4), 13, True, marks=pytest.mark.slow),
    *[("convnet", (2, 4), seed, True) for seed in range(14, 16)],
]


@pytest.mark.parametrize(("name", "mesh_shape", "seed", "donate"), CASES)
def test_any_feasible_solution_computes_the_original(name, mesh_shape, seed, donate):
    planning = planning_of(name, mesh_shape, donate)
    rng = np.random.default_rng(seed)
    solution = random_solution(planning, rng, remat=(seed % 4) / 3)
    assert evaluate(planning.problem, solution).violations == ()
    kept = random_kept_copies(planning, solution, rng)
    execution = with_random_ties(build_execution(Solved(planning, solution, kept)), rng)
    execution = replace(execution, copies_ahead=seed % 2 == 0, gradients_in_time=seed % 3 == 0)
    execution = replace(execution, metrics_in_time=seed % 5 == 0)
    function = jitted(planning, execution)
    leaves = flat_arguments(name)[0]
    # Copies, since donated arguments do not survive the call.
    placed = [
        jax.device_put(np.asarray(x), jax.sharding.NamedSharding(planning.mesh.jax_mesh(), spec))
        for x, spec in zip(leaves, argument_specs(execution), strict=True)
    ]
    results = function(*placed)
    # The GPT is trained by AdamW: where a gradient is rounding noise, the parameter moves by up
    # to the learning rate in either direction. Moments are of the size of the gradient, exact.
    atol = 1e-3 if name == "gpt" else 2e-5
    for got, wanted in zip(results, expected_results(name), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=atol)
    for got, spec in zip(results, result_specs(execution), strict=True):
        wanted_sharding = jax.sharding.NamedSharding(planning.mesh.jax_mesh(), spec)
        assert got.sharding.is_equivalent_to(wanted_sharding, got.ndim)


def argument_specs(execution):
    return [execution.mesh.partition_spec(s) for s in execution.argument_shardings]


def result_specs(execution):
    return [execution.mesh.partition_spec(s) for s in execution.result_shardings]


def count_primitives(function, program: Program) -> dict[str, int]:
    shapes = [program.values[a].shape_dtype for a in program.arguments]
    found: dict[str, int] = {}
    for eqn in jax.make_jaxpr(function)(*shapes).eqns:
        eqns = [eqn]
        if eqn.primitive.name in ("jit", "pjit"):
            eqns = eqn.params["jaxpr"].eqns
        for inner in eqns:
            found[inner.primitive.name] = found.get(inner.primitive.name, 0) + 1
    return found


def test_equations_are_emitted_as_often_as_the_schedule_says():
    planning = planning_of("mlp", (2, 4), False)
    solution = random_solution(planning, np.random.default_rng(3), remat=1.0)
    execution = build_execution(Solved(planning, solution))
    assert execution.recomputed
    graph = planning.units.graph
    names = [e.name for e in graph.program.equations]
    expected = sum(
        times * names[e].startswith("dot_general")
        for unit, times in execution.schedule.computations().items()
        for e in planning.units.units[unit].equations
    )
    emitted = count_primitives(emit(execution), graph.program)
    assert emitted["dot_general"] == expected > names.count("dot_general")


def test_without_recomputation_the_forward_pass_is_emitted_once():
    planning = planning_of("mlp", (1, 1), False)
    first = [0] * len(planning.problem.nodes)
    execution = build_execution(Solved(planning, first))
    assert execution.recomputed == frozenset()
    assert execution.schedule.steps == tuple(range(len(planning.units.units)))


def test_recomputed_units_run_just_before_the_time_they_are_recomputed_at():
    schedule = recomputation_schedule([0] * 6, {0: 4, 1: 4, 2: 5})
    assert schedule.steps == (0, 1, 2, 3, 0, 1, 4, 2, 5)


def test_recomputation_stands_behind_a_barrier_with_a_backward_value():
    planning = planning_of("mlp", (1, 1), False)
    solution = random_solution(planning, np.random.default_rng(0), remat=1.0)
    execution = build_execution(Solved(planning, solution))
    emitted = count_primitives(emit(execution), planning.units.graph.program)
    assert emitted["optimization_barrier"] >= 1


def test_recomputation_survives_compilation():
    """The compiled program has the recomputed matmuls twice."""

    def loss(w, x):
        return jax.numpy.tanh(jax.numpy.tanh(x @ w) @ w).sum()

    args = array(16, 16), array(8, 16)
    units = units_of(jax.value_and_grad(loss), *args)
    planning = problem_of(units, (1, 1))
    solution = random_solution(planning, np.random.default_rng(0), remat=1.0)
    execution = build_execution(Solved(planning, solution))
    assert execution.recomputed
    compiled = (
        jax.jit(emit(execution), compiler_options=CPU_COMPILER_OPTIONS).lower(*args).compile()
    )
    plain = jax.jit(jax.value_and_grad(loss)).lower(*args).compile()
    assert count_dots(compiled.as_text()) > count_dots(plain.as_text())
    concrete = random_arrays(args)
    np.testing.assert_allclose(
        compiled(*concrete)[1], flat(jax.value_and_grad(loss))(*concrete)[1], rtol=1e-5, atol=1e-5
    )


def count_dots(text: str) -> int:
    return sum(" dot(" in line or "__onednn$matmul" in line for line in text.splitlines())


def sliced_update(p, m, g):
    """Each device holds `p`, and updates a part of it."""
    return 0.9 * m + p * g


def test_a_part_of_an_operand_is_cut_within_the_map_that_reads_it():
    """Which is why it costs nothing (`kiwi.problem.edges`)."""
    args = [array(64, 32)] * 3
    whole, cut = P(), P("x")
    plan = kiwi.plan(
        sliced_update,
        *args,
        mesh_shape=(8,),
        in_shardings=(whole, cut, cut),
        out_shardings=cut,
    )
    (operator,) = plan.decisions
    assert operator.reads[0] != plan.execution.argument_shardings[0]
    assert plan.estimate.resharding_seconds == 0
    text = (
        plan.step.jit(plan.mesh.jax_mesh(), CPU_COMPILER_OPTIONS).lower(*args).compile().as_text()
    )
    entry = text[text.index("ENTRY") :]
    assert "dynamic-slice" in text and " dynamic-slice(" not in entry


def test_a_part_of_an_operand_of_a_matmul_is_cut_before():
    args = [array(64, 32), array(32, 16)]
    plan = kiwi.plan(
        jax.numpy.dot,
        *args,
        mesh_shape=(8,),
        in_shardings=(P(), P()),
        out_shardings=P("x"),
        verify=None,
    )
    (operator,) = plan.decisions
    assert operator.reads[0] == TensorSharding(((0,), ()))
    assert plan.estimate.resharding_seconds > 0


def test_copies_that_begin_ahead_of_their_readers_are_made_again():
    """Behind a barrier that nobody reads, XLA would read the first copy once more."""
    planning = planning_of("mlp", (2, 4), True)
    arguments = [array(*x.shape, dtype=x.dtype) for x in flat_arguments("mlp")[0]]
    moved = 0
    for start in obvious_starts(planning):
        waiting = replace(build_execution(Solved(planning, start)), tied_steps=frozenset())
        ahead = replace(waiting, copies_ahead=True)
        moved += barriers(ahead) != barriers(waiting)
        counts = [
            jitted(planning, each).lower(*arguments).compile().as_text().count(" all-gather(")
            for each in (waiting, ahead)
        ]
        assert counts[0] == counts[1]
    assert moved
