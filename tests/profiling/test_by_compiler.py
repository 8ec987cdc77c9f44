"""Tables of the times that compilers state, without the devices."""

from dataclasses import replace
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.errors import CompileCheckError, CompilerUnavailableError, UnknownProfileError
from kiwi.mesh import CATALOGUE, DeviceMesh, ProfileTable
from kiwi.profiling.by_compiler import MATMUL_SCALE, MEMORY_SCALE, CompilerBench
from kiwi.profiling.measure import Kind
from kiwi.profiling.operator_points import STREAM_BYTES, operator_points, stream_point
from kiwi.profiling.recording import collective_points, state
from kiwi.xla.gpu.compiler import GPU, explain_failure
from kiwi.xla.tpu.compiler import TPU, TpuCompiler

WEIGHTS = jax.ShapeDtypeStruct((256, 512), "float32")
BATCH = jax.ShapeDtypeStruct((128, 256), "float32")
V5E = CATALOGUE["v5e"]
needs_compiler = pytest.mark.skipif(
    find_spec("libtpu") is None, reason="the extra aot-tpu is not installed"
)


def layer(w, x):
    return jnp.tanh(x @ w).sum()


def points_of_layer():
    units = kiwi.jit(layer, mesh_shape=(2,)).traced(WEIGHTS, BATCH).units
    return operator_points(units, DeviceMesh.create((2,), "cpu"))


@pytest.fixture
def compiler(monkeypatch):
    """Makes XLA:TPU state a microsecond for each function. Returns the number of functions of each
    request."""
    asked = []

    def stated(self, step):
        asked.append(len(step.out_specs))
        return dict.fromkeys(range(len(step.out_specs)), 1e-6)

    monkeypatch.setattr(TpuCompiler, "check_available", lambda *_: None)
    monkeypatch.setattr(TpuCompiler, "stated_seconds", stated)
    return asked


def test_times_are_scaled_to_the_catalogue_and_not_below_the_peak(compiler):
    bench = CompilerBench(V5E, DeviceMesh.create((2,), V5E))
    # Seven matmuls of a layer: 4 of 4096 x 4096 and 3 of 4096 x 11008, at 8192 tokens.
    flops = 2 * 8192 * 4096 * (4 * 4096 + 3 * 11008)
    assert bench.scales[MATMUL_SCALE] == pytest.approx(flops / (0.8 * 197e12) / 7e-6)
    assert bench.scales[MEMORY_SCALE] == pytest.approx(2**28 / (0.85 * 819e9) / 1e-6)
    exact = replace(bench, known_scales={MATMUL_SCALE: 1.0, MEMORY_SCALE: 2.0})
    small, large = exact.times([stream_point(2**14), stream_point(2**28)])
    launch = V5E.kernel_launch_seconds
    assert small.seconds == pytest.approx(launch + 2e-6)
    assert large.seconds == pytest.approx(launch + 2**28 / 819e9)


def test_a_table_is_begun_grown_and_resumed(compiler, tmp_path):
    path = tmp_path / "v5e.json"
    points = [p for p in points_of_layer() if p.kind is Kind.MATMUL]
    first = state(points[:2], (2,), V5E, path=path)
    # Calibration is one program, and one the streams with two matmuls.
    assert compiler == [8, len(STREAM_BYTES) + 2]
    assert first.environment.compiler.startswith("libtpu")
    assert not first.collectives and first.mesh_shape == (2,)
    both = state(points, (2,), V5E, path=path)
    assert compiler[2:] == [len(points) - 2]
    assert both.scales == first.scales and both.operators[: len(first.operators)] == first.operators
    assert ProfileTable.load(path) == both


def test_what_does_not_compile_is_found_by_halves(compiler, monkeypatch):
    def refuses(self, step):
        if any(argument.size >= 2**20 for argument in step.arguments):
            raise CompileCheckError("Too large.")
        return dict.fromkeys(range(len(step.out_specs)), 1e-6)

    monkeypatch.setattr(TpuCompiler, "stated_seconds", refuses)
    scales = {MATMUL_SCALE: 1.0, MEMORY_SCALE: 1.0}
    bench = CompilerBench(V5E, DeviceMesh.create((1,), V5E), scales)
    found = bench.times([stream_point(size) for size in STREAM_BYTES])
    is_large = [size // 8 >= 2**20 for size in STREAM_BYTES]
    assert [isinstance(each, CompileCheckError) for each in found] == is_large


def test_what_the_compiler_leaves_out_is_noted(compiler, monkeypatch):
    monkeypatch.setattr(TpuCompiler, "stated_seconds", lambda *_: {})
    bench = CompilerBench(V5E, DeviceMesh.create((1,), V5E), {MEMORY_SCALE: 1.0})
    (found,) = bench.times([stream_point(2**14)])
    assert "does not state" in str(found)
    with pytest.raises(CompilerUnavailableError, match="states no times of matmuls"):
        replace(bench, known_scales=None).scales  # noqa: B018


def test_tables_of_links_count_inside_a_node(monkeypatch):
    monkeypatch.setattr(type(GPU), "check_available", lambda *_: None)
    h100 = CATALOGUE["h100-sxm"]

    def stated(shape):
        mesh = DeviceMesh.create(shape, h100)
        bench = CompilerBench(h100, mesh)
        return [p.entry.bytes for p in collective_points(mesh) if bench.states(p)]

    # Five kinds of two sizes along three sets of axes; 1 and 16 KiB are left out.
    assert len(stated((2, 4))) == 5 * 3 * 3 and min(stated((2, 4))) == 2**18
    assert not stated((4, 4))


def test_devices_whose_compiler_states_no_times():
    with pytest.raises(CompilerUnavailableError, match="'cpu' states no times"):
        kiwi.record_profile(layer, WEIGHTS, BATCH, mesh_shape=(2,), compiler="cpu")
    with pytest.raises(UnknownProfileError):
        kiwi.record_profile(layer, WEIGHTS, BATCH, mesh_shape=(2,), compiler="v5x")
    error = explain_failure("JaxRuntimeError: NOT_FOUND: Cannot find key: sm_80")
    assert isinstance(error, CompilerUnavailableError) and "9.0" in str(error)
    assert "operator" not in TPU.stated_kinds


@needs_compiler
def test_a_layer_is_planned_with_what_a_tpus_compiler_states(tmp_path):
    path = tmp_path / "v5e.json"
    table = kiwi.record_profile(layer, WEIGHTS, BATCH, mesh_shape=(2,), compiler="v5e", path=path)
    assert not table.skipped
    # Published steps on v5e reach 0.8 of the peak, and the compiler says the same of matmuls.
    assert table.scales[MATMUL_SCALE] == pytest.approx(1.0, abs=0.1)
    times = {e.shapes: e.seconds for e in table.operators if e.opcode == "dot_general"}
    assert times[(1, 128, 256), (1, 256, 512)] > times[(1, 64, 256), (1, 256, 512)]
    assert {e.opcode for e in table.operators} == {"stream", "dot_general", "tanh", "mul"}
    plan = kiwi.plan(layer, WEIGHTS, BATCH, mesh_shape=(2,), profile=str(path), verify=None)
    assert plan.time_shares["compiler"] > 0.3
    assert "measured" not in plan.time_shares and "% compiler" in str(plan)
