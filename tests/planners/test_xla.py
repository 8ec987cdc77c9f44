"""The planner "xla" predicts the program that XLA compiles from hand-written shardings."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import kiwi
from examples import gpt, mlp
from examples.baselines import Baseline, compile_baseline, estimate_baseline
from kiwi.hlo.host_memory import fetch, store
from kiwi.hlo.lowering import lower
from kiwi.hlo.tracing import trace
from kiwi.mesh import DeviceMesh
from kiwi.planners.xla import propagated_shardings

MESH = DeviceMesh.create((2, 4), "h100-sxm")


def specs_of_results(function: Any, specs: list[P], *shapes: tuple[int, ...]) -> list[Any]:
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    program = trace(lambda *leaves: [function(*leaves)], arrays)
    given = dict(zip(program.arguments, specs, strict=True))
    results = [r for r in program.results if isinstance(r, int)]
    found = propagated_shardings(lower(program), MESH, given, {})
    return [MESH.partition_spec(found[r]) for r in results]


def test_shardings_propagate_as_in_xla():
    column, row = P(None, "y"), P("x", None)
    product = specs_of_results(jnp.matmul, [row, column], (8, 16), (16, 32))
    assert product == [P("x", "y")]
    summed = specs_of_results(lambda x, w: (x @ w).sum(1), [row, column], (8, 16), (16, 32))
    assert summed == [P("x")]
    assert specs_of_results(lambda x: x.T * 2, [P("x", "y")], (8, 16)) == [P("y", "x")]


def test_xla_is_asked_once_for_all_hardware_and_budgets(monkeypatch: pytest.MonkeyPatch):
    asked: list[DeviceMesh] = []

    def counted(graph: Any, mesh: DeviceMesh, *given: Any) -> Any:
        asked.append(mesh)
        return propagated_shardings(graph, mesh, *given)

    monkeypatch.setattr("kiwi.planners.xla.propagated_shardings", counted)
    config = mlp.SIZES["tiny"]
    arguments = mlp.abstract_state(config), mlp.abstract_batch(config)
    specs = [mlp.data_parallel_specs(arguments[0], axes) for axes in (("x", "y"), "x")]
    rows = [
        [
            estimate_baseline(baseline, *arguments, mesh_shape=(2, 4), profile=profile)
            for profile in ("v100-sxm2", "h100-sxm")
        ]
        for baseline in (Baseline("hand", mlp.make_train_step(config), each) for each in specs)
    ]
    assert len(asked) == 2
    for slow, fast in rows:
        assert slow.step_seconds > fast.step_seconds


def test_constraints_copies_and_loops_of_the_program_are_there():
    spec = NamedSharding(MESH.abstract_mesh(), P("x", None))

    def function(x: Any, w: Any) -> list[Any]:
        w = fetch(w)
        y = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), spec)
        rows = jax.lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(32), y)[1]
        return [store(w - x.T @ y), rows]

    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((16, 64), (64, 32))]
    program = trace(function, arrays, open_loops=True)
    given = dict(zip(program.arguments, [P(None, "y"), P()], strict=True))
    found = propagated_shardings(lower(program), MESH, given, {})
    lies = {e.name: found[e.outputs[0]].dims for e in program.equations if e.outputs[0] in found}
    assert lies["host_fetch"] == lies["host_store"] == ((1,), ())
    assert lies["tanh"] == ((0,), ()) and lies["loop_slice"] == ((),)


@pytest.mark.parametrize("module", [mlp, gpt])
def test_collectives_of_tensor_parallelism_are_those_compiled(module: Any):
    config = module.SIZES["tiny"]
    state, batch = module.abstract_state(config), module.abstract_batch(config)
    specs = module.megatron_specs(state, "x", "y")
    hand = Baseline("megatron", module.make_train_step(config), specs)
    options: dict[str, Any] = {"mesh_shape": (2, 4)}
    predicted = estimate_baseline(hand, state, batch, profile="h100-sxm", **options)
    compiled = compile_baseline(hand, state, batch, **options)
    assert predicted.collective_uses == compiled.collective_uses


def test_nothing_is_decided_where_nothing_is_given():
    """Without a sharding every value is whole on every device."""
    config = mlp.SIZES["tiny"]
    state, batch = mlp.abstract_state(config), mlp.abstract_batch(config)
    whole = jax.tree.map(lambda _: P(), (state, batch))
    found = kiwi.plan(
        mlp.make_train_step(config),
        state,
        batch,
        mesh_shape=(2, 4),
        planner="xla",
        verify=None,
        in_shardings=whole,
    )
    assert found.estimate.collective_uses == ()
    assert found.residency_counts()["recompute"] == 0


def test_larger_meshes_are_asked_in_a_process_of_their_own():
    mesh = DeviceMesh.create((4, 4), "h100-sxm")
    arrays = [jax.ShapeDtypeStruct((16, 32), "float32"), jax.ShapeDtypeStruct((32, 64), "float32")]
    program = trace(lambda x, w: [jnp.tanh(x @ w)], arrays)
    given = dict(zip(program.arguments, [P(("x", "y"), None), P()], strict=True))
    asked = [r for r in program.results if isinstance(r, int)]
    found = propagated_shardings(lower(program), mesh, given, {})[asked[0]]
    assert mesh.partition_spec(found) == P(("x", "y"), None)


def test_lookups_under_fsdp_follow_the_batch_as_in_xla():
    """Propagation alone would cut the embedding's features; XLA simplifies first."""
    config = gpt.SIZES["tiny"]
    state, batch = gpt.abstract_state(config), gpt.abstract_batch(config)
    hand = Baseline("fsdp", gpt.make_train_step(config), gpt.fsdp_specs(state, ("x", "y"), 8))
    options: dict[str, Any] = {"mesh_shape": (2, 4)}
    predicted = estimate_baseline(hand, state, batch, profile="h100-sxm", **options)
    compiled = compile_baseline(hand, state, batch, **options)
    gathered = predicted.collectives["all-gather"].bytes
    assert gathered == pytest.approx(compiled.collectives["all-gather"].bytes, rel=0.1)


CACHED = """
import jax, jax.numpy as jnp, sys
from jax.sharding import PartitionSpec as P
from kiwi.hlo.lowering import lower
from kiwi.hlo.tracing import trace
from kiwi.mesh import DeviceMesh
from kiwi.planners.xla import propagated_shardings
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
program = trace(lambda x: [jnp.tanh(x)], [jax.ShapeDtypeStruct((4,), "float32")])
mesh, given = DeviceMesh.create((2,), "cpu"), {program.arguments[0]: P("x")}
print(*(str(propagated_shardings(lower(program), mesh, given, {})) for _ in range(2)), sep="\\n")
"""


def test_a_compilation_cache_does_not_answer(tmp_path):
    command = [sys.executable, "-c", CACHED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == second and "(0,)" in first
    # XLA ends behind Shardy, so that there is nothing to cache.
    assert not any("ending" in file.name for file in tmp_path.iterdir())


def test_a_kernel_of_another_platform_in_a_shard_map_is_laid_out_as_it_says():
    """XLA:CPU cannot lower it. What reads its result takes it as it lies."""
    mesh = AbstractMesh((8,), ("rows",), axis_types=(AxisType.Auto,))
    attend = jax.shard_map(
        flash_attention, mesh=mesh, in_specs=P("rows"), out_specs=P("rows"), check_vma=False
    )
    x = jax.ShapeDtypeStruct((16, 2, 256, 128), "bfloat16")
    options: dict[str, Any] = {"mesh": mesh, "profile": "v5e", "verify": None}
    plans = [
        kiwi.plan(
            jax.value_and_grad(lambda q, k, v: jnp.sum(attend(q, k, v).astype("float32"))),
            *(x, x, x),
            in_shardings=P("rows"),
            planner=planner,
            **options,
        )
        for planner in ("xla", "joint")
    ]
    assert [use.kind for use in plans[0].estimate.collective_uses] == ["all-reduce"]
    seconds = [plan.estimate.step_seconds for plan in plans]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.05)
