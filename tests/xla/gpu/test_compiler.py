"""The check by XLA:GPU without a GPU: its results, and its errors where it cannot work."""

import os
import sys
from dataclasses import replace
from importlib import metadata
from typing import Any

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import kiwi
from examples import convnet, gpt, mlp, state_space, vit
from kiwi.campaign.overlap_search import without_forms
from kiwi.errors import CompilerUnavailableError, NotEnoughDevicesError
from kiwi.mesh import hardware
from kiwi.profiling.measure import TimedFunction
from kiwi.targets.rules.gpu.softmax_rows import LONGEST_ROW
from kiwi.xla.compilers import compile_for
from kiwi.xla.gpu import compiler as cuda

pytestmark = pytest.mark.usefixtures("cublas_is_lent_its_workspace")

INSTALLED = cuda._version(cuda.PLUGINS[0]) is not None

needs_compiler = pytest.mark.skipif(not INSTALLED, reason="the extra aot-cuda is not installed")


def plan(module: Any, sizes: dict[str, int] | None = None, **options: Any) -> kiwi.Plan:
    config = replace(module.SIZES["tiny"], **(sizes or {}))
    state, batch = module.abstract_state(config), module.abstract_batch(config)
    step = module.make_train_step(config)
    defaults = {"mesh_shape": (2, 4), "verify": "cuda", "donate_argnums": 0}
    return kiwi.plan(step, state, batch, **{**defaults, **options})


@needs_compiler
@pytest.mark.parametrize("profile", ["a100-sxm", "h100-sxm", "h200-sxm"])
def test_a_plan_is_checked_by_the_compiler_of_its_gpu(profile: str):
    found = plan(mlp, profile=profile, in_shardings=(None, PartitionSpec("x")))
    compiled = found.compiled
    assert compiled is not None and compiled.target == "cuda" and found.fits
    assert compiled.memory is not None
    # What lives at the peak, and what the heap wastes then, is all that is allocated.
    held = max(compiled.memory.curve_bytes) + compiled.memory.fragmentation_bytes
    assert held == compiled.peak_bytes
    assert {use.axes for use in compiled.collective_uses} == {("x",)}
    assert found.unforeseen_collectives == ()
    assert {u for u in compiled.memory.units if u >= 0}


@needs_compiler
def test_the_label_of_a_cross_entropy_is_added_in_place():
    """Its gradient has no zeros of the size of the logits, which would be half as much again."""
    found = plan(gpt, {"vocabulary": 32768, "sequence": 512}, mesh_shape=(1,), profile="h100-sxm")
    assert found.compiled is not None
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.05)
    program = found.execution.units.graph.program
    largest = max(value.size_bytes for value in program.values)
    assert 2 * largest < found.compiled.peak_bytes < 2.5 * largest


@needs_compiler
def test_convolutions_live_as_long_as_they_are_read():
    """They yield tuples, which the buffer assignment does not follow."""
    found = plan(convnet, {"batch": 64}, mesh_shape=(1,))
    assert found.compiled is not None and found.compiled.memory is not None
    memory = found.compiled.memory
    kept = {b.opcode for b in memory.at_peak if b.kind == "temporary"}
    assert "custom-call" in kept
    assert memory.fragmentation_bytes < 0.05 * found.compiled.temporary_bytes


@needs_compiler
@pytest.mark.parametrize("scattered", [0, 3], ids=["batch", "features"])
def test_summands_of_a_convolution_are_transposed_to_be_scattered(scattered: int):
    def convolved(x: jax.Array, w: jax.Array) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)

    image = jax.ShapeDtypeStruct((32, 64, 64, 64), "float32")
    kernel = jax.ShapeDtypeStruct((3, 3, 64, 32), "float32")
    features = PartitionSpec(None, None, None, "x"), PartitionSpec(None, None, "x")
    result = PartitionSpec(*(["x"] if scattered == 0 else [None, None, None, "x"]))
    found = kiwi.plan(
        convolved,
        image,
        kernel,
        mesh_shape=(8,),
        planner="xla",
        verify="cuda",
        profile="h100-sxm",
        in_shardings=features,
        out_shardings=result,
    )
    assert found.compiled is not None
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.1)


@needs_compiler
@pytest.mark.parametrize(("gathered", "transposed"), [(0, False), (1, True), (2, False)])
def test_matmuls_transpose_gathered_copies_whose_groups_lie_apart(gathered: int, transposed: bool):
    """The rule of `gpu_transposed_operands`, as its unit tests have it."""
    x = jax.ShapeDtypeStruct((64, 256, 1024), "float32")
    w = jax.ShapeDtypeStruct((64, 256, 256), "float32")
    whole = NamedSharding(jax.make_mesh((8,), ("x",)), PartitionSpec())

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        x = jax.lax.with_sharding_constraint(x, whole)
        return jax.numpy.einsum("bsd,bse->de", x, w)

    cut = PartitionSpec(*("x" if d == gathered else None for d in range(3)))
    found = kiwi.plan(
        product,
        x,
        w,
        mesh_shape=(8,),
        planner="xla",
        verify="cuda",
        profile="h100-sxm",
        in_shardings=(cut, PartitionSpec()),
    )
    assert found.compiled is not None and found.compiled.memory is not None
    at_peak = [b.bytes for b in found.compiled.memory.at_peak if b.kind == "temporary"]
    assert at_peak.count(x.size * 4) == 1 + transposed


@needs_compiler
@pytest.mark.parametrize(
    ("length", "is_one_kernel"), [(LONGEST_ROW, True), (LONGEST_ROW + 1, False)]
)
def test_a_softmax_of_short_rows_takes_the_time_of_one_kernel(length: int, is_one_kernel: bool):
    dtype = "bfloat16"
    found = kiwi.plan(
        lambda x: jax.nn.softmax(2 * x) + 1,
        jax.ShapeDtypeStruct((1024, length), dtype),
        mesh_shape=(1,),
        planner="xla",
        verify="cuda",
        profile="h100-sxm",
    )
    assert found.compiled is not None and found.compiled.time is not None
    hardware = found.mesh.hardware
    read_and_written = 2 * 1024 * length * jax.numpy.dtype(dtype).itemsize
    moving_seconds = read_and_written / hardware.sustained_memory_bytes_per_second
    once_seconds = hardware.kernel_launch_seconds + moving_seconds
    seconds = found.compiled.time.step_seconds
    assert (seconds == pytest.approx(once_seconds, rel=0.1)) == is_one_kernel
    assert seconds == pytest.approx(found.estimate.step_seconds, rel=0.2)


@needs_compiler
def test_a_recomputed_softmax_is_one_kernel_in_either_pass():
    """Its gradient's kernel reduces the rows for itself; else both would sum up in another one."""

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.numpy.sum(jax.numpy.sin(jax.nn.softmax(0.125 * (q @ k)) @ v))

    shapes = (16, 1024, 64), (16, 64, 1024)
    heads, transposed = (jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)
    found = kiwi.plan(
        jax.grad(loss, (0, 1, 2)),
        heads,
        transposed,
        heads,
        mesh_shape=(1,),
        planner="alpa+dots",
        verify="cuda",
        profile="h100-sxm",
    )
    assert found.execution.recomputed
    assert found.compiled is not None and found.compiled.step_seconds is not None
    assert 0.9 < found.compiled.step_seconds / found.estimate.step_seconds < 1


@needs_compiler
def test_scaled_operands_of_two_matmuls_are_there_once():
    """XLA takes a scale behind a matmul that reads it, unless a barrier is between them."""
    scores = jax.ShapeDtypeStruct((64, 256, 256), "float32")
    heads = jax.ShapeDtypeStruct((64, 256, 64), "float32")

    def gradients(g: jax.Array, q: jax.Array, k: jax.Array) -> Any:
        scaled = jax.numpy.where(g > 0, g * jax.numpy.sin(g), 0.0) * 0.125
        to_heads = "hqs,hsd->hqd", "hqs,hqd->hsd"
        return [jax.numpy.einsum(p, scaled, x) for p, x in zip(to_heads, (k, q), strict=True)]

    found = kiwi.plan(
        gradients, scores, heads, heads, mesh_shape=(1,), verify="cuda", profile="h100-sxm"
    )
    assert found.compiled is not None and found.compiled.memory is not None
    sizes = [b.bytes for b in found.compiled.memory.at_peak if b.kind == "temporary"]
    assert sizes.count(scores.size * 4) == 1
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.01)


LENT_FROM_HOPPER = (4 if jax.__version_info__ >= (0, 12) else 32) * 2**20


@needs_compiler
@pytest.mark.parametrize(
    ("profile", "lent"), [("h100-sxm", LENT_FROM_HOPPER), ("a100-sxm", 4 * 2**20)]
)
def test_what_cublas_is_lent_is_foreseen(profile: str, lent: int):
    arguments = [jax.ShapeDtypeStruct((512, 512), "float32")] * 2
    found = kiwi.plan(
        lambda x, w: x @ w, *arguments, mesh_shape=(1,), verify="cuda", profile=profile
    )
    assert found.compiled is not None and found.compiled.memory is not None
    assert lent in [b.bytes for b in found.compiled.memory.at_peak if b.kind == "temporary"]
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, abs=1024)


@needs_compiler
def test_of_an_associative_scan_halves_are_held():
    """Nor is a matmul that is not recomputed lent anything."""
    found = plan(state_space, {"width": 256, "sequence": 512, "batch": 32}, profile="h100-sxm")
    assert found.compiled is not None and found.estimate.recompute_seconds == 0
    waits = compile_for("cuda", without_forms(found).step)  # Collectives in flight hold more.
    assert found.estimate.peak_bytes == pytest.approx(waits.peak_bytes, rel=0.05)


@needs_compiler
def test_gradients_whose_columns_are_summed_are_not_written_over_their_operand():
    """Behind each GELU: the sum is that of a bias."""
    found = plan(mlp, {"layers": 2, "width": 512, "batch": 65536}, mesh_shape=(1,))
    assert found.compiled is not None and found.estimate.recompute_seconds == 0
    assert found.estimate.peak_bytes == pytest.approx(found.compiled.peak_bytes, rel=0.02)


@needs_compiler
@pytest.mark.parametrize("mesh_shape", [(1,), (2, 4)], ids=str)
def test_what_matmuls_yield_is_not_transposed(mesh_shape: tuple[int, ...]):
    """The norms of a vision transformer reduce rows."""
    sizes = {"layers": 1, "width": 256, "batch": 64, "image": 256, "patch": 16}
    found = plan(vit, sizes, mesh_shape=mesh_shape, profile="h100-sxm", effort="quick")
    written = replace(found.execution.facts, transposes_products=False)
    without = replace(found.execution, kernels=replace(found.execution.kernels, facts=written))
    assert found.compiled is not None and found.compiled.time is not None
    other = compile_for("cuda", replace(found, execution=without).step)
    assert other.time is not None and found.unforeseen_collectives == ()
    assert found.compiled.time.step_seconds < other.time.step_seconds
    assert found.compiled.collectives == other.collectives


@needs_compiler
@pytest.mark.parametrize("function", [jax.numpy.matmul, jax.numpy.add])
def test_what_is_timed_often_is_as_many_kernels(function: Any):
    arguments = [jax.ShapeDtypeStruct((512, 512), "float32")] * 2
    often = TimedFunction(function, arguments).times(8)
    found = kiwi.plan(
        often.body, *arguments, mesh_shape=(1,), planner="xla", verify="cuda", profile="h100-sxm"
    )
    once = hardware("h100-sxm").kernel_launch_seconds
    assert found.compiled is not None and found.compiled.time is not None
    assert found.compiled.time.step_seconds > 8 * once


@needs_compiler
def test_older_gpus_are_compiled_for_without_ptxas(monkeypatch: pytest.MonkeyPatch):
    """Which their machine code would need: no code is generated before the answer is there."""
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    found = plan(gpt, profile="v100-sxm2", mesh_shape=(8,))
    assert found.compiled is not None and found.compiled.temporary_bytes > 0


def versions(monkeypatch: pytest.MonkeyPatch, **installed: str) -> None:
    def version(name: str) -> str:
        if name.replace("-", "_") not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name.replace("-", "_")]

    monkeypatch.setattr(cuda.metadata, "version", version)


def test_a_missing_compiler_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch):
    versions(monkeypatch)
    with pytest.raises(CompilerUnavailableError, match="is not installed") as caught:
        plan(mlp)
    assert "kiwi-planner[aot-cuda]" in caught.value.suggestion


def test_a_compiler_of_another_version_is_said_with_both(monkeypatch: pytest.MonkeyPatch):
    versions(monkeypatch, jax_cuda12_plugin="0.4.1", jax_cuda12_pjrt="0.4.1")
    expected = rf"jax-cuda12-plugin is of version 0\.4\.1, jax is of version {jax.__version__}"
    with pytest.raises(CompilerUnavailableError, match=expected):
        cuda.check_plugin()
    versions(monkeypatch, jax_cuda12_plugin=jax.__version__)
    with pytest.raises(CompilerUnavailableError, match="jax-cuda12-pjrt is not installed"):
        cuda.check_plugin()
    both = dict.fromkeys(("jax_cuda13_plugin", "jax_cuda13_pjrt"), jax.__version__)
    versions(monkeypatch, **both)
    cuda.check_plugin()


def test_what_a_failed_compiler_prints_is_explained():
    assert isinstance(
        cuda.explain_failure("ValueError: cannot parse GpuTargetConfigProto"),
        CompilerUnavailableError,
    )
    assert cuda.explain_failure("Segmentation fault") is None


def test_hardware_that_is_no_gpu_is_refused():
    with pytest.raises(CompilerUnavailableError, match="'cpu' does not describe"):
        plan(mlp, profile="cpu")


def test_the_attached_devices_are_a_target_if_they_are_enough():
    found = plan(mlp, profile="cpu", verify="device")
    assert found.compiled is not None and found.compiled.target == "device"
    on_cpu = plan(mlp, profile="cpu", verify="cpu").compiled
    assert on_cpu is not None and found.compiled.peak_bytes == on_cpu.peak_bytes
    with pytest.raises(NotEnoughDevicesError):
        plan(mlp, verify="device", mesh_shape=(4, 4))
