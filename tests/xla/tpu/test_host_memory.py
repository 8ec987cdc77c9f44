"""Offloaded values leave the device's memory in programs that XLA:TPU compiles."""

import functools
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import kiwi
from kiwi.campaign.barrier_levels import with_tied_steps
from kiwi.emit.barriers import barriers
from kiwi.xla.compile.worker import begun_elsewhere
from kiwi.xla.tpu.compiler import TPU
from tests.helpers.offloading import all_as, arrays, perceptron
from tests.helpers.planning import array
from tests.helpers.tpu_code import generated

pytestmark = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="the extra aot-tpu is not installed"
)


@pytest.mark.parametrize("is_scanned", [True, False])
def test_offloaded_values_leave_the_device(is_scanned: bool):
    step, given = perceptron(8, is_scanned=is_scanned), arrays(8, 512, 16384)
    plan = all_as(step, given, "offload", verify="tpu", donate_argnums=0)
    compiled = TPU.compile(plan.step)
    assert compiled.host_peak_bytes == pytest.approx(plan.estimate.host_peak_bytes, rel=0.05)
    assert plan.estimate.peak_bytes == pytest.approx(compiled.peak_bytes, rel=0.25)


@pytest.mark.slow
def test_code_is_generated_for_slices_of_the_buffer():
    """XLA:TPU refuses slices of several dimensions only when it generates code, after the check."""
    step, given = perceptron(2, is_scanned=False), arrays(2, 512, 4096)
    plan = all_as(step, given, "offload", 2**29, mesh_shape=(2, 2))
    assert plan.residency_counts()["offload"] > 0
    assert not begun_elsewhere(generated, plan.step, "tpu")()


def test_an_iteration_may_fetch_before_it_begins_unless_the_step_is_tied():
    step, given = perceptron(4, is_scanned=True), arrays(4, 512, 4096)
    plan = all_as(step, given, "offload")
    tied = with_tied_steps(plan, frozenset(range(len(plan.execution.schedule.steps))))
    free, late = (barriers(each.execution).steps for each in (plan, tied))
    steps = plan.execution.schedule.steps
    first = min(k for k, u in enumerate(steps) if u in plan.execution.fetched and u in steps[:k])
    assert not free[first].triggers and late[first].triggers


@pytest.mark.slow
def test_no_stack_of_parameters_on_the_host_is_on_the_device():
    """Each of the two loops fetches its own elements, and XLA:TPU generates code for that."""
    layers, width = 16, 1024
    kinds = kiwi.Constraints(memory_kinds={"ws": "pinned_host"})

    def gradient(ws: jax.Array, x: jax.Array) -> jax.Array:
        def loss(x: jax.Array) -> jax.Array:
            return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0].sum()

        return jax.grad(loss)(x)

    plan = kiwi.plan(
        gradient,
        array(layers, width, width),
        array(256, width),
        mesh_shape=(2, 2),
        profile="v5e",
        verify="tpu",
        memory_budget="16MiB",
        constraints=kinds,
    )
    assert plan.compiled is not None and plan.fits
    stack_bytes = layers * width * width * 4 // 4
    assert plan.compiled.host_peak_bytes == plan.estimate.host_peak_bytes == stack_bytes
    assert plan.compiled.peak_bytes < stack_bytes
    assert not begun_elsewhere(generated, plan.step, "tpu")()


def test_moments_on_the_host_come_one_after_the_other():
    """XLA:TPU would fetch all of them when the step begins."""
    layers, width = 6, 1024
    optimizer = optax.scale_by_adam()

    def step(ws: list[jax.Array], state: Any, x: jax.Array) -> Any:
        def loss(ws: list[jax.Array]) -> jax.Array:
            return (functools.reduce(lambda x, w: jnp.tanh(x @ w), ws, x) ** 2).mean()

        updates, state = optimizer.update(jax.grad(loss)(ws), state, ws)
        return optax.apply_updates(ws, updates), state

    ws = [array(width, width)] * layers
    given = ws, jax.eval_shape(optimizer.init, ws), array(256, width)
    plan = kiwi.plan(
        step,
        *given,
        mesh_shape=(1,),
        profile="v5e",
        verify="tpu",
        donate_argnums=(0, 1),
        constraints=kiwi.Constraints(memory_kinds={"state/[mn]u/**": "pinned_host"}),
    )
    moments_bytes = 2 * layers * 4 * width**2
    assert plan.compiled is not None
    assert plan.estimate.host_peak_bytes == plan.compiled.host_peak_bytes == moments_bytes
    assert plan.compiled.peak_bytes < plan.estimate.peak_bytes + moments_bytes // 2
    assert not begun_elsewhere(generated, plan.step, "tpu")()
