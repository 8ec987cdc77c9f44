"""Regions cost as much as the same program outside of a region."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi.errors import InfeasibleBudgetError
from tests.helpers.planning import array

MESH = AbstractMesh((8,), ("rows",), axis_types=(AxisType.Auto,))
OPTIONS = {"verify": None, "plan_cache": False}


def plan_of(function, *args, **options):
    return kiwi.plan(function, *args, mesh=MESH, **OPTIONS, **options)


def mlp(x, up, down):
    return jax.nn.relu(x @ up) @ down


@pytest.mark.parametrize("profile", ["v5e", "h100-sxm"])
def test_matmuls_in_a_shard_map_take_what_they_take_outside(profile):
    mapped = jax.shard_map(mlp, mesh=MESH, in_specs=(P("rows"), P(), P()), out_specs=P("rows"))
    bf16 = partial(array, dtype="bfloat16")
    args = bf16(65536, 2048), bf16(2048, 8192), bf16(8192, 2048)
    given = {"in_shardings": (P("rows"), P(), P()), "out_shardings": P("rows")}
    outside, inside = (
        plan_of(f, *args, profile=profile, **given).estimate.step_seconds for f in (mlp, mapped)
    )
    assert inside == pytest.approx(outside, rel=0.01)


@pytest.mark.parametrize("profile", ["v5e", "h100-sxm"])
def test_a_scan_that_is_left_whole_takes_what_it_takes_opened(profile):
    """But for the slices of the weights, which it reads where it multiplies by them."""

    def layers(ws, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    args = array(6, 2048, 2048), array(8192, 2048)
    options = {"mesh_shape": (1,), "profile": profile, **OPTIONS}
    opened, whole = (kiwi.plan(layers, *args, open_loops=o, **options) for o in (True, False))
    assert not whole.execution.units.graph.program.loops
    assert whole.estimate.step_seconds == pytest.approx(opened.estimate.step_seconds, rel=0.1)


def test_collectives_in_a_shard_map_count_for_each_iteration_and_are_no_work():
    def layers(total, ws, x):
        return jax.lax.scan(lambda x, w: (x + total(jnp.tanh(x) @ w) / 8, None), x, ws)[0]

    def mapped(function, count):
        return jax.shard_map(function, mesh=MESH, in_specs=(P(),) * count, out_specs=P())

    ws, x = array(4, 1024, 1024), array(1024, 1024)
    total = lambda y: jax.lax.psum(y, "rows")  # noqa: E731
    inside = plan_of(mapped(partial(layers, total), 2), ws, x, profile="h100-sxm").estimate
    once = plan_of(mapped(total, 1), x, profile="h100-sxm").estimate
    assert inside.communication_seconds == pytest.approx(4 * once.communication_seconds)
    alone = partial(layers, lambda y: y)
    plain = kiwi.plan(alone, ws, x, mesh_shape=(1,), profile="h100-sxm", **OPTIONS).estimate
    assert inside.compute_seconds == pytest.approx(plain.compute_seconds, rel=0.25)


def test_a_pipeline_passes_on_by_ppermute_in_a_scan_and_is_not_whole():
    ring = [(k, (k + 1) % 8) for k in range(8)]

    def stages(w, x):
        def tick(held, _):
            return jax.lax.ppermute(jnp.tanh(held @ w[0]), "rows", ring), None

        return jax.lax.scan(tick, x, length=11)[0]

    mapped = jax.shard_map(stages, mesh=MESH, in_specs=(P("rows"),) * 2, out_specs=P("rows"))
    plan = plan_of(mapped, array(8, 1024, 1024), array(8192, 1024), profile="h100-sxm")
    assert plan.estimate.communication_seconds > 11 * 1024**2 * 4 / 450e9
    assert not any("whole on every device" in note for note in plan.notes)


def test_a_kernel_in_a_shard_map_takes_what_its_sharding_rule_makes_it_take():
    """In the estimate, and in the schedule of the compiled program."""
    attend = partial(flash_attention, causal=True)
    mapped = jax.shard_map(
        attend, mesh=MESH, in_specs=P("rows"), out_specs=P("rows"), check_vma=False
    )
    x = array(32, 8, 2048, 128, dtype="bfloat16")

    def gradients(f):
        return jax.value_and_grad(lambda *qkv: jnp.sum(f(*qkv).astype("float32")), (0, 1, 2))

    ruled, inside = (
        plan_of(gradients(f), x, x, x, profile="v5e", in_shardings=P("rows"))
        for f in (kiwi.sharding_rule(attend), mapped)
    )
    seconds = ruled.estimate.step_seconds
    assert inside.estimate.step_seconds == pytest.approx(seconds, rel=0.1)
    of_rule, of_region = (sorted(p.step.kernel_seconds.values()) for p in (ruled, inside))
    assert of_region == pytest.approx(of_rule, rel=0.1)


def test_a_refusal_names_the_shard_map_that_every_device_runs_whole():
    theirs = AbstractMesh((4, 2), ("fsdp", "tp"), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(mlp, mesh=theirs, in_specs=(P("fsdp"), P(), P()), out_specs=P("fsdp"))
    args = array(65536, 1024), array(1024, 1024), array(1024, 1024)
    with pytest.raises(InfeasibleBudgetError) as refused:
        kiwi.plan(mapped, *args, mesh_shape=(2, 4), memory_budget="64MiB", **OPTIONS)
    assert "shard_map at" in refused.value.cause and "fsdp=4, tp=2" in refused.value.cause
    assert refused.value.suggestion.startswith("mesh=the mesh of the shard_map, fsdp=4, tp=2")
