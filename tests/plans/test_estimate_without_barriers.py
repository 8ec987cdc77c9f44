"""The estimate of a program that runs without a plan's barriers."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import kiwi


def plan_of(function: Any, specs: tuple[Any, ...], *shapes: tuple[int, ...]) -> kiwi.Plan:
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    return kiwi.plan(
        function,
        *arrays,
        mesh_shape=(8,),
        planner="xla",
        in_shardings=specs,
        verify=None,
        memory_budget="1TiB",
    )


def two_readers(x: Any, w: Any) -> Any:
    """Both matmuls need the whole `w`, of which each device holds an eighth."""
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def test_a_value_is_gathered_once_for_all_readers_of_a_layout():
    plan = plan_of(two_readers, (P("x"), P("x")), (64, 32), (32, 32))
    assert plan.as_written is not None
    gathered = 32 * 32 * 4
    assert plan.estimate.collectives["all-gather"].bytes == 2 * gathered
    assert plan.as_written.collectives["all-gather"].bytes == gathered
    saved = plan.estimate.step_seconds - plan.as_written.step_seconds
    # The first reader waits; what the second one gathers is hidden in part.
    hidden = plan.estimate.hidden_seconds - plan.as_written.hidden_seconds
    assert hidden > 0 and plan.as_written.hidden_seconds == 0
    assert saved == pytest.approx(plan.estimate.resharding_seconds / 2 - hidden)


def test_the_gathered_copy_is_held_from_the_first_reader_to_the_last():
    plan = plan_of(two_readers, (P("x"), P("x")), (64, 32), (32, 32))
    assert plan.as_written is not None
    (copy,) = (b for b in plan.as_written.buffers if b.kind == "copy")
    assert copy.bytes == 32 * 32 * 4
    assert copy in plan.as_written.alive_at(copy.start) and copy.end - copy.start >= 2
    least = max(plan.as_written.memory_bytes)
    assert plan.as_written.peak_bytes >= least >= plan.estimate.peak_bytes


def test_a_program_without_resharding_is_estimated_alike():
    plan = plan_of(lambda x: jnp.sin(x).sum(1), (P("x"),), (64, 32))
    assert plan.as_written is not None
    assert plan.as_written.step_seconds == plan.estimate.step_seconds
    assert plan.as_written.peak_bytes == plan.estimate.peak_bytes


def test_plans_that_decide_are_not_estimated_as_written():
    array = jax.ShapeDtypeStruct((64, 32), "float32")
    assert kiwi.plan(jnp.sin, array, mesh_shape=(8,), verify=None).as_written is None
