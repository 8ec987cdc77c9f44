"""Every planner opens scans, or says that it cannot."""

import functools
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi.errors import LoopNotSupportedError
from kiwi.planners.registry import planner_named, planners
from kiwi.targets.registry import TARGETS
from tests.helpers.loops import descent, layers, normal
from tests.helpers.on_cpu import ON_CPU, WAITING_ON_CPU

LAYERS, BATCH, LENGTH, HEADS, WIDTH = 4, 16, 32, 4, 64
OPENING = ("joint", "alpa", "xla", "alpa+dots", "alpa+megatron")


def _layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
    y = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-3)
    q, k, v = ((y @ w[name]).reshape(*x.shape[:2], HEADS, -1) for name in ("query", "key", "value"))
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape)
    return x + mixed @ w["out"], None


def _loss(params: Any, x: jax.Array) -> jax.Array:
    x, _ = jax.lax.scan(_layer, x, params)
    return jnp.mean(x * x)


def _unrolled_loss(params: Any, x: jax.Array) -> jax.Array:
    for k in range(LAYERS):
        x, _ = _layer(x, jax.tree.map(lambda w, k=k: w[k], params))
    return jnp.mean(x * x)


@functools.cache
def _arguments() -> tuple[Any, jax.Array]:
    names = ("query", "key", "value", "out")
    params = {name: normal(k, LAYERS, WIDTH, WIDTH) for k, name in enumerate(names)}
    return params, normal(4, BATCH, LENGTH, WIDTH)


def _jitted(planner: str, loss: Any = _loss, **options: Any) -> Any:
    options = {"mesh_shape": (2, 4), "time_limit_seconds": 5, "donate_argnums": 0, **options}
    options = {"profile": ON_CPU, **options} if options.get("verify", "cpu") else options
    return kiwi.jit(descent(loss), planner=planner, memory_budget="1GiB", **options)


@functools.cache
def _megatron_specs() -> Any:
    column, row = P(None, None, "y"), P(None, "y", None)
    return {"query": column, "key": column, "value": column, "out": row}, P("x")


@pytest.mark.parametrize("planner", ["xla", "alpa+dots"])  # "joint": tests/emit/test_loops.py
def test_a_planned_stack_computes_the_same_and_its_peak_is_foreseen(planner):
    planned = _jitted(planner)
    expected = jax.jit(descent(_loss))(*_arguments())
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), _arguments())
    plan = planned.plan(*shapes)
    assert plan.execution.units.graph.program.loops
    assert plan.estimate.peak_bytes == pytest.approx(plan.compiled.peak_bytes, rel=0.15)
    copies = jax.tree.map(jnp.copy, _arguments())
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        planned(*copies),
        expected,
    )


@pytest.fixture(scope="module")
def written_in_place() -> Iterator[None]:
    """Lets the forward loop write the arrays for the backward loop in place, as on TPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TARGETS, "cuda", TARGETS["cuda"].without("gpu_copied_stacks"))
        yield


@pytest.mark.usefixtures("written_in_place")
@pytest.mark.parametrize("planner", ["alpa+dots", "alpa+megatron"])
def test_rules_recompute_in_the_body_of_the_backward_loop(planner):
    plan = _jitted(planner, verify=None).plan(*_arguments())
    units, again = plan.execution.units, plan.execution.recomputed
    assert again and {units.units[u].loop for u in again} == {0}
    for decision in plan.decisions:
        if decision.unit in again:
            assert units.units[decision.recompute_at].loop == 1
    assert plan.estimate.peak_bytes < _jitted("alpa", verify=None).plan(*_arguments()).peak_bytes


def test_xla_lays_a_scanned_stack_out_as_an_unrolled_one():
    options = {"in_shardings": _megatron_specs()}
    scanned, unrolled = (
        _jitted("xla", loss, **options).plan(*_arguments()) for loss in (_loss, _unrolled_loss)
    )
    for plan in (scanned, unrolled):
        assert plan.estimate.collectives == plan.compiled.collectives
        assert plan.estimate.peak_bytes == pytest.approx(plan.compiled.peak_bytes, rel=0.1)
    assert scanned.estimate.peak_bytes == pytest.approx(unrolled.estimate.peak_bytes, rel=0.3)


@pytest.mark.parametrize("planner", [n for n in planners() if n not in OPENING])
def test_the_others_say_that_they_cannot(planner):
    mesh_shape = (2, 4) if planner_named(planner).is_sharding else (1,)
    options = {"mesh_shape": mesh_shape, "planner": planner, "verify": None}
    assert not planner_named(planner).opens_loops
    with pytest.raises(LoopNotSupportedError, match="open_loops=False"):
        kiwi.plan(layers().step, *layers().args, memory_budget="1GiB", **options)


def test_without_opening_loops_they_plan_scans_as_operators():
    options = {"mesh_shape": (2, 4), "memory_budget": "1GiB", "verify": None}
    plan = kiwi.plan(
        layers().step, *layers().args, planner="two-stage", open_loops=False, **options
    )
    assert not plan.execution.units.graph.program.loops


def _stack(length: int, *, unrolled: bool) -> tuple[Any, Any]:
    """Returns the loss of a stack of wide layers, and its abstract parameters and input."""
    rows, wide, hidden = 524288, 8192, 28672
    shapes = {"up": (wide, hidden), "down": (hidden, wide)}

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    def loss(params: Any) -> jax.Array:
        x, stack = params["input"], params["layers"]
        if unrolled:
            for w in stack:
                x, _ = layer(x, w)
        else:
            x, _ = jax.lax.scan(layer, x, stack)
        return jnp.mean(x * x)

    def arrays(*leading: int) -> Any:
        return {n: jax.ShapeDtypeStruct((*leading, *s), "float32") for n, s in shapes.items()}

    stack = [arrays() for _ in range(length)] if unrolled else arrays(length)
    return loss, {"input": jax.ShapeDtypeStruct((rows, wide), "float32"), "layers": stack}


WITHOUT_SHRINKING = set(hypothesis.Phase) - {hypothesis.Phase.shrink, hypothesis.Phase.explain}


@pytest.mark.usefixtures("written_in_place")
@hypothesis.settings(max_examples=2, derandomize=True, deadline=None, phases=WITHOUT_SHRINKING)
@hypothesis.given(st.integers(4, 12), st.sampled_from([(2, 4), (8,)]))
@hypothesis.example(4, (8,))
@hypothesis.example(12, (2, 4))
def test_a_scanned_stack_is_planned_and_compiled_as_an_unrolled_one(length, mesh_shape):
    """In seconds, but for the zeros that stacks are filled with, in layouts, and in the collectives
    of the compiled program. Of two layers the zeros decide the layouts; so do, of more, the copies
    of stacks that XLA:GPU makes, and XLA:CPU does not."""
    rows = P("xy"[len(mesh_shape) - 1])
    options = {"mesh_shape": mesh_shape, "profile": WAITING_ON_CPU, "donate_argnums": 0}
    options |= {"in_shardings": ({"input": rows, "layers": None},), "memory_budget": "10TB"}
    scanned, unrolled = (
        kiwi.plan(descent(loss), params, **options, verify="cpu")
        for loss, params in (_stack(length, unrolled=u) for u in (False, True))
    )
    seconds = unrolled.estimate.step_seconds
    stacked_seconds = sum(d.seconds for d in scanned.decisions if d.opcode == "loop_stack")
    filled_seconds = stacked_seconds / 3  # read once, written twice: with zeros first
    assert scanned.estimate.step_seconds - filled_seconds == pytest.approx(seconds, rel=0.02)
    (stack,), (layers,) = scanned.in_shardings, unrolled.in_shardings
    for w in layers["layers"]:
        assert stack["layers"] == {name: P(None, *spec) for name, spec in w.items()}
    for plan in (scanned, unrolled):
        assert plan.estimate.collectives == plan.compiled.collectives
    assert scanned.compiled.collectives == unrolled.compiled.collectives
