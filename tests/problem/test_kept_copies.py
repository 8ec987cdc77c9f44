"""Resharded operands that are kept for later readers."""

import functools
import itertools
import math
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import kiwi
from benchmarks.programs.random_plans import run_random_plan
from kiwi.emit.interpreter import emit
from kiwi.hlo.graph import Phase
from kiwi.interval import bytes_at
from kiwi.memory.loop_bodies import OperandRead
from kiwi.memory.timeline import Buffer
from kiwi.mesh import hardware
from kiwi.plans.estimate import estimate_schedule
from kiwi.problem.build import NONE_KEPT, KeptCopies, PlanningProblem
from kiwi.problem.kept_copies import kept_copies
from kiwi.problem.solved import Solved
from kiwi.solver import evaluate
from kiwi.solver.effort import WORK_PER_SECOND, Allowance
from kiwi.xla.cpu.compiler import CPU_COMPILER_OPTIONS
from tests.helpers.on_cpu import WAITING_ON_CPU
from tests.helpers.planning import array

ROWS, WIDTH, LAYERS = 2**15, 128, 3
WEIGHT_BYTES = 4 * WIDTH * WIDTH
ALLOWED = Allowance(WORK_PER_SECOND, 60.0)
ARGUMENTS = [array(WIDTH, WIDTH)] * LAYERS, array(ROWS, WIDTH)


def step(weights: Any, x: Any) -> Any:
    """Gradient descent on a chain of layers. The backward pass reads all weights except the
    first."""

    def loss(weights: Any) -> Any:
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return jnp.mean(h**2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value


OPTIONS = {
    "mesh_shape": (8,),
    "memory_budget": "1GiB",
    "donate_argnums": 0,
    "in_shardings": ([P(None, "x")] * LAYERS, P("x")),
    "profile": WAITING_ON_CPU,
}
"""Data parallelism, with the weights fully sharded by the caller."""


@functools.cache
def free_plan() -> kiwi.Plan:
    return kiwi.plan(step, *ARGUMENTS, **OPTIONS)


def alone(plan: kiwi.Plan) -> tuple[PlanningProblem, tuple[int, ...]]:
    """Returns the plan's problem and solution, in which every reader makes its own copies."""
    assert plan.origin is not None and plan.solve_result.solution is not None
    return plan.origin.planning, plan.solve_result.solution


def priced(planning: PlanningProblem, solution: tuple[int, ...], kept: KeptCopies) -> Any:
    problem = planning.restricted(solution, kept).problem
    return evaluate(problem, [0] * len(problem.nodes))


def test_a_weight_is_gathered_once_for_forward_and_backward_pass():
    plan = free_plan()
    assert len(plan.execution.kept_copies) == LAYERS - 1
    planned = plan.estimate.collectives["all-gather"]
    assert (planned.count, planned.bytes) == (LAYERS, LAYERS * WEIGHT_BYTES)
    assert plan.compiled is not None
    compiled = plan.compiled.collectives["all-gather"]
    assert (compiled.count, compiled.bytes) == (planned.count, planned.bytes)


def test_the_estimate_says_what_is_saved():
    plan = free_plan()
    planning, solution = alone(plan)
    without = priced(planning, solution, NONE_KEPT)
    gather = without.parts["resharding"] - plan.estimate.resharding_seconds
    assert gather == pytest.approx(without.parts["resharding"] * 2 / 5)  # 2 of 5 equal gathers
    assert without.cost - plan.estimate.step_seconds == pytest.approx(gather)
    assert any("2 resharded operands are kept" in note.text for note in plan.notes)


def test_a_copy_is_held_from_its_first_reader_to_its_last():
    plan = free_plan()
    planning, solution = alone(plan)
    restricted = planning.restricted(solution, plan.execution.kept_copies)
    first = len(restricted.sources) + len(restricted.unit_nodes)
    for number, copy in enumerate(restricted.copies):
        if copy.earlier is not None:
            maker = restricted.copies[copy.earlier].unit
            (usage,) = restricted.problem.nodes[first + number].usage
            assert usage == (Buffer(maker + 1, copy.unit + 1, WEIGHT_BYTES, "copy", maker),)
            assert maker < copy.unit
    held = [b for b in plan.estimate.buffers if b.kind == "copy"]
    assert sum(b.bytes * (b.end - b.start) for b in held) > 0


def assert_scheduled_alike(plan: kiwi.Plan) -> None:
    """Checks that the schedule and the solution have the same estimate."""
    solved = Solved(*alone(plan), plan.execution.kept_copies)
    found = estimate_schedule(solved, plan.execution.schedule)
    seconds = {name: getattr(found, name) for name in ("step_seconds", "recompute_seconds")}
    assert found == replace(plan.estimate, time_shares=found.time_shares, **seconds)
    assert seconds == pytest.approx({name: getattr(plan.estimate, name) for name in seconds})


def test_the_schedule_holds_the_same_copies():
    assert_scheduled_alike(free_plan())


def test_the_compiled_program_holds_the_copies():
    """Behind the forward pass the weights but the last one are there, gathered."""
    plan = free_plan()
    assert plan.compiled is not None
    assert plan.estimate.peak_bytes == pytest.approx(plan.compiled.peak_bytes, rel=0.02)


def test_numbers_are_those_of_the_step():
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((WIDTH, WIDTH)).astype("float32") / 8 for _ in range(LAYERS)]
    x = rng.standard_normal((ROWS, WIDTH)).astype("float32")
    wanted = jax.jit(step)(weights, x)
    planned = kiwi.jit(step, **OPTIONS)
    assert planned.plan(weights, x).execution.kept_copies
    for got, want in zip(*map(jax.tree.leaves, (planned(weights, x), wanted)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6)


def test_a_plan_file_keeps_them(tmp_path):
    free_plan().save(tmp_path / "plan.json")
    saved = kiwi.load_plan(tmp_path / "plan.json")
    applied = saved.apply(step).plan(*ARGUMENTS)
    assert applied.execution.kept_copies == free_plan().execution.kept_copies
    assert set(applied.estimate.buffers) == set(free_plan().estimate.buffers)


def test_the_breakdown_adds_up():
    breakdown, estimate = free_plan().breakdown, free_plan().estimate
    total = sum(decision.costs.total_seconds for decision in breakdown.operators)
    assert total == pytest.approx(estimate.step_seconds)
    at_peak = bytes_at(breakdown.buffers, estimate.peak_unit)
    assert at_peak == estimate.memory_bytes[estimate.peak_unit]
    kept = frozenset[OperandRead]().union(
        *(decision.kept_copies for decision in breakdown.operators)
    )
    assert kept == free_plan().execution.kept_copies
    assert "read from the copy of operator" in str(free_plan().explain(min(kept).unit, forced=0))


def test_xla_s_own_program_keeps_none_in_a_plan():
    """What it keeps is priced without a plan's fences (`kiwi.plans.estimate_without_barriers`)."""
    plan = kiwi.plan(step, *ARGUMENTS, **OPTIONS, planner="xla", verify=None)
    assert not plan.execution.kept_copies


# The choice is the best one.


@pytest.mark.parametrize("spare_copies", [0, 1, 2, 3])
@pytest.mark.parametrize("is_again", [False, True])
def test_the_choice_equals_brute_force(is_again, spare_copies):
    planning, solution = alone(recomputing_plan() if is_again else free_plan())
    opened = planning.restricted(solution, kept=None)
    offered = [c.operand_read for c in opened.copies if len(c.options) > 1]
    assert len(offered) == LAYERS - 1 + is_again * LAYERS
    assert {read.is_again for read in offered} == {False, is_again}
    limit = priced(planning, solution, NONE_KEPT).peak_bytes + spare_copies * WEIGHT_BYTES
    corrected = replace(planning, problem=replace(planning.problem, limit_bytes=limit))
    best = math.inf
    for chosen in itertools.product([False, True], repeat=len(offered)):
        kept = frozenset(itertools.compress(offered, chosen))
        found = priced(planning, solution, kept)
        if found.peak_bytes <= limit:
            best = min(best, found.cost)
    kept, _ = kept_copies(planning, corrected, solution, ALLOWED)
    assert priced(planning, solution, kept).cost == pytest.approx(best)
    assert priced(planning, solution, kept).peak_bytes <= limit


def test_where_no_memory_is_left_none_is_kept():
    planning, solution = alone(free_plan())
    limit = priced(planning, solution, NONE_KEPT).peak_bytes - 1
    corrected = replace(planning, problem=replace(planning.problem, limit_bytes=limit))
    kept, took = kept_copies(planning, corrected, solution, ALLOWED)
    assert kept == NONE_KEPT and took == Allowance(0, 0)


def test_what_is_kept_is_an_earlier_reader_s_copy_in_the_same_layout():
    planning, solution = alone(free_plan())
    opened = planning.restricted(solution, kept=None)
    for copy in opened.copies:
        if copy.earlier is not None:
            earlier = opened.copies[copy.earlier]
            assert earlier.unit < copy.unit and earlier.value == copy.value
            assert earlier.options[0].target == copy.options[0].target


def test_what_maps_cut_for_nothing_saves_nothing_if_kept():
    """The second map would be given back what it never paid."""

    def two_maps(p: Any, m: Any) -> Any:
        return jnp.sin(p) * m, jnp.tanh(p) + m

    specs = (P(), P("x"))
    plan = kiwi.plan(
        two_maps, *[array(64, 32)] * 2, mesh_shape=(8,), in_shardings=specs, out_shardings=P("x")
    )
    assert not plan.execution.kept_copies
    assert plan.estimate.resharding_seconds == 0


# Recomputation.


def recomputing_step(weights: Any, x: Any) -> Any:
    """Like `step`, with each matmul of the forward pass computed twice, so that its weight has
    three readers."""

    def loss(weights: Any) -> Any:
        h = x
        for w in weights:
            h = jnp.sin(kiwi.hint(h @ w, recompute=True))
        return jnp.mean(h**2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value


@functools.cache
def recomputing_plan() -> kiwi.Plan:
    return kiwi.plan(recomputing_step, *ARGUMENTS, **OPTIONS)


def test_a_recomputed_reader_keeps_a_copy():
    plan = recomputing_plan()
    kept = plan.execution.kept_copies
    assert sum(read.is_again for read in kept) == LAYERS
    assert plan.estimate.collectives["all-gather"].count == LAYERS
    assert_scheduled_alike(plan)


def test_as_compiled_it_is_recomputed_and_gathers_nothing():
    """The copy passes the barrier of what is recomputed, which would else be the first result."""
    plan = recomputing_plan()
    assert plan.compiled is not None
    assert plan.compiled.collectives["all-gather"].count == LAYERS
    mesh = plan.mesh.jax_mesh()
    pairs = zip(*map(jax.tree.leaves, (ARGUMENTS, plan.in_shardings)), strict=True)
    given = [
        jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=NamedSharding(mesh, spec))
        for shape, spec in pairs
    ]
    jitted = jax.jit(emit(plan.execution), compiler_options=CPU_COMPILER_OPTIONS)
    text = jitted.lower(*given).compile().as_text()
    matmuls = LAYERS + LAYERS + LAYERS + (LAYERS - 1)  # forward, again, of weights, of inputs
    assert text.count(" dot(") == matmuls


def test_a_saved_plan_keeps_it(tmp_path):
    recomputing_plan().save(tmp_path / "plan.json")
    applied = kiwi.load_plan(tmp_path / "plan.json").apply(recomputing_step).plan(*ARGUMENTS)
    assert applied.execution.kept_copies == recomputing_plan().execution.kept_copies
    again = next(read.unit for read in sorted(applied.execution.kept_copies) if read.is_again)
    text = str(recomputing_plan().explain(again, forced=0))
    assert f"when recomputed, read from the copy of operator {again}" in text


# Loops.


SCANNED = array(8, 512, 512), array(2**13, 512)


def recomputing_scan(weights: Any, x: Any) -> Any:
    """Like `recomputing_step`, with a scan."""

    def body(h: Any, w: Any) -> Any:
        return jnp.sin(kiwi.hint(h @ w, recompute=True)), None

    def loss(weights: Any) -> Any:
        return jnp.mean(jax.lax.scan(body, x, weights)[0] ** 2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return weights - 0.1 * gradients, value


@pytest.mark.parametrize(
    ("profile", "verify", "budget"),
    [
        (WAITING_ON_CPU, "cpu", "32MiB"),
        pytest.param(
            *(replace(hardware("v5e"), interference=None), "tpu", "18MiB"),
            marks=pytest.mark.skipif(find_spec("libtpu") is None, reason="no XLA:TPU"),
        ),
    ],
)
def test_what_an_iteration_recomputes_it_gathers_once(profile, verify, budget):
    """The budget has no room for the gathered weights of all layers."""
    own = {"in_shardings": (P(None, None, "x"), P("x")), "memory_budget": budget}
    plan = kiwi.plan(
        recomputing_scan, *SCANNED, **{**OPTIONS, **own, "profile": profile, "verify": verify}
    )
    (kept,) = plan.execution.kept_copies
    assert plan.execution.units.units[kept.unit].phase is Phase.BACKWARD
    assert plan.estimate.collectives["all-gather"].count == 2 * 8  # forward, and backward
    assert plan.compiled is not None and plan.fits
    assert plan.compiled.collectives["all-gather"].count == 2 * 8


def test_what_an_iteration_keeps_it_holds_behind_the_recomputation():
    own = {"in_shardings": (P(None, None, "x"), P("x")), "memory_budget": "32MiB"}
    plan = kiwi.plan(recomputing_scan, *SCANNED, **{**OPTIONS, **own, "verify": None})
    (kept,) = plan.execution.kept_copies
    (maker,) = plan.execution.recomputed
    again = plan.decisions[maker].recompute_at
    size = 4 * 512 * 512
    own_spans = {(b.start, b.end) for b in plan.estimate.buffers if b.kind == "copy"}
    assert {(again, again + 1), (again + 1, kept.unit + 1)} <= own_spans
    assert all(b.bytes == size for b in plan.estimate.buffers if b.kind == "copy")
    solved = Solved(*alone(plan), plan.execution.kept_copies)
    found = estimate_schedule(solved, plan.execution.schedule).buffers
    assert {(b.start, b.end) for b in found if b.kind == "copy"} == own_spans


def scanned(weights: Any, x: Any) -> Any:
    """The body reads a value computed from its weight twice."""

    def body(h: Any, w: Any) -> Any:
        both = jnp.sin(w)
        return jnp.tanh(jnp.tanh(h @ both) @ both), None

    return jnp.mean(jax.lax.scan(body, x, weights)[0] ** 2)


def test_in_the_body_of_a_loop():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((LAYERS, WIDTH, WIDTH)).astype("float32") / 8
    x = rng.standard_normal((WIDTH, WIDTH)).astype("float32")
    planned = kiwi.jit(jax.grad(scanned), mesh_shape=(2,), verify=None)
    wanted = jax.jit(jax.grad(scanned))(weights, x)
    for seed in (3, 9):  # random plans that keep one
        result, execution = run_random_plan(planned, (weights, x), seed)
        units = [execution.units.units[read.unit] for read in execution.kept_copies]
        assert units and all(unit.loop is not None for unit in units)
        np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-6)
