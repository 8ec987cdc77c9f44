"""The check by XLA:TPU without a TPU: its results, and its errors where it cannot work."""

import functools
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import kiwi
from benchmarks.fidelity.models import MODELS
from benchmarks.tpu.options import figures
from examples import gpt, mlp
from kiwi.errors import CompileCheckError, CompilerUnavailableError
from kiwi.mesh.topology import Topology
from kiwi.plans.report_data import report_data
from kiwi.xla.compile.worker import begun_elsewhere
from kiwi.xla.compilers import overlapping_compiles
from kiwi.xla.tpu import compiler
from tests.helpers.tpu_code import generated_beside_sums

needs_compiler = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="the extra aot-tpu is not installed"
)


def plan(module: Any, **options: Any) -> kiwi.Plan:
    config = module.SIZES["tiny"]
    state, batch = module.abstract_state(config), module.abstract_batch(config)
    step = module.make_train_step(config)
    defaults = {"mesh_shape": (2, 4), "profile": "v5e", "verify": "tpu", "donate_argnums": 0}
    return kiwi.plan(step, state, batch, **{**defaults, **options})


@needs_compiler
@pytest.mark.parametrize("profile", ["v5e", "v6e", "tpu7x"])
def test_a_plan_is_checked_by_the_compiler_of_its_tpu(profile: str):
    found = plan(mlp, profile=profile)
    compiled = found.compiled
    assert compiled is not None and compiled.target == "tpu" and found.fits
    assert compiled.memory is not None
    # What lives at the peak, and what the heap wastes then, is all that is allocated.
    held = max(compiled.memory.curve_bytes) + compiled.memory.fragmentation_bytes
    assert held == compiled.peak_bytes
    assert {u for u in compiled.memory.units if u >= 0}


@needs_compiler
def test_a_run_overlaps_and_needs_no_more_memory_than_the_check_says():
    """A run has VMEM beside, where buffers that wait for collectives find room."""
    model = MODELS["mlp"]
    state = model.module.abstract_state(model.config)
    batch = model.module.abstract_batch(model.config)
    found = kiwi.plan(
        model.module.make_train_step(model.config),
        state,
        batch,
        mesh_shape=(2, 4),
        profile="v5e",
        donate_argnums=0,
        effort="quick",
    )
    assert found.compiled is not None
    assert found.compiled.is_overlapping
    run = figures(found.step, found.run_options(compiler.TPU))
    assert run["peak_bytes"] <= found.compiled.overlapping_peak_bytes
    assert run["overlapping_bytes"] > run["collective_bytes"] / 4


def matmuls(profile: str) -> kiwi.Plan:
    """Returns a plan, without a check, of parameters that the gradients of four matmuls update."""

    def step(ws: list[jax.Array], x: jax.Array) -> Any:
        def loss(ws: list[jax.Array]) -> jax.Array:
            return (functools.reduce(lambda x, w: jax.nn.relu(x @ w), ws, x) ** 2).mean()

        return jax.tree.map(lambda w, g: w - 0.1 * g, ws, jax.grad(loss)(ws))

    ws = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32)] * 4
    x = jax.ShapeDtypeStruct((4096, 1024), jnp.float32)
    options = {"mesh_shape": (2, 4), "effort": "quick", "verify": None, "donate_argnums": 0}
    return kiwi.plan(step, ws, x, profile=profile, **options)


@needs_compiler
def test_code_is_generated_for_kernels_that_also_move_a_sum():
    """XLA:TPU refuses them without more of a stack, but only after the check; on a v4 always."""
    runs, as_reserved = begun_elsewhere(generated_beside_sums, matmuls("v5p").step, "tpu")()
    assert not runs and "CompileTimeScopedVmemOom" in as_reserved
    reducing = overlapping_compiles("tpu")[-1]
    with pytest.raises(CompileCheckError, match="VMEM"):
        reducing(matmuls("v4").step)()


@needs_compiler
def test_collectives_are_those_planned_and_kept_in_the_file(tmp_path: Any):
    found = plan(gpt)
    assert found.compiled is not None
    assert {u.axes for u in found.compiled.collective_uses} <= {("x",), ("y",), ("x", "y")}
    path = tmp_path / "plan.json"
    found.save(path)
    assert kiwi.load_plan(path).mesh.topology == found.mesh.topology


@needs_compiler
def test_collectives_of_a_loop_count_once_an_iteration():
    layers = jax.ShapeDtypeStruct((12, 2048, 2048), "float32")
    x = jax.ShapeDtypeStruct((64, 2048), "float32")
    shardings = PartitionSpec(None, "x"), PartitionSpec(None, "x")
    found = kiwi.plan(
        lambda layers, x: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, layers)[0],
        *(layers, x),
        mesh_shape=(8,),
        profile="v5e",
        verify="tpu",
        in_shardings=shardings,
        out_shardings=shardings[1],
    )
    assert found.compiled is not None
    counts = [sum(u.count for u in p.collective_uses) for p in (found.estimate, found.compiled)]
    assert counts[0] == counts[1] >= 12


@needs_compiler
def test_slices_and_an_order_of_devices_reach_the_compiler_and_the_file(tmp_path: Any):
    """The batch lies across two slices, whose chips x has along their longer dimension."""

    def step(w: jax.Array, x: jax.Array):
        return jax.grad(lambda w: ((x @ w) ** 2).sum())(w)

    whole, cut = PartitionSpec(), PartitionSpec(("x", "y"))
    found = kiwi.plan(
        step,
        jax.ShapeDtypeStruct((512, 512), "float32"),
        jax.ShapeDtypeStruct((4096, 512), "float32"),
        mesh_shape=(8, 2),
        profile="v5e",
        topology="2x4",
        num_slices=2,
        verify="tpu",
        in_shardings=(whole, cut),
        out_shardings=whole,
    )
    assert found.mesh.topology == Topology((2, 4), 2)
    assert found.mesh.device_order == tuple(s + k for s in (0, 8) for k in (0, 4, 1, 5, 2, 6, 3, 7))
    assert found.compiled is not None
    # XLA:TPU reduces inside of a slice, sends shards between slices, and gathers in the slice.
    uses = {(use.kind, use.axes) for use in found.compiled.collective_uses}
    assert uses == {("reduce-scatter", ("x", "y")), ("all-gather", ("x", "y"))}
    assert "x: 2 slices x line of 4, y: line of 2" in str(found)
    # An eighth of the bytes leaves the slice.
    assert found.estimate.communication_seconds > 2**20 / 8 / 3.125e9
    path = tmp_path / "plan.json"
    found.save(path)
    saved = kiwi.load_plan(path)
    assert saved.mesh == found.mesh
    assert report_data(saved.document)["axis_texts"] == ("2 slices x line of 4", "line of 2")


@needs_compiler
def test_plans_are_checked_at_the_same_time_and_in_silence(capfd: pytest.CaptureFixture[str]):
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda shape: plan(mlp, mesh_shape=shape), [(2, 4), (8,)]))
    assert all(found.compiled is not None for found in both)
    assert capfd.readouterr() == ("", "")


def test_without_libtpu_or_a_tpu_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(CompilerUnavailableError, match="h100-sxm"):
        plan(mlp, profile="h100-sxm")
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    with pytest.raises(CompilerUnavailableError, match="not installed") as caught:
        plan(mlp)
    assert "aot-tpu" in str(caught.value)


@needs_compiler
def test_a_program_beyond_the_chip_is_read_and_the_compilers_own_recomputation_is_seen():
    """The compiler refuses it, and has assigned its buffers by then."""
    config = mlp.MlpConfig(layers=6, width=4096, batch=262144)
    state, batch = mlp.abstract_state(config), mlp.abstract_batch(config)
    found = kiwi.plan(
        mlp.make_train_step(config),
        state,
        batch,
        mesh_shape=(2, 2),
        profile="v5e",
        memory_budget="1TiB",
        donate_argnums=0,
    )
    assert found.compiled is not None and found.compiled.target == "tpu"
    granted = found.mesh.hardware.memory_bytes
    assert min(found.compiled.peak_bytes, found.estimate.peak_bytes) > granted
    assert found.compiled.rematerialized == 0
