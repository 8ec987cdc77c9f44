"""Which compiler a plan predicts, and what is said of one that Kiwi does not know."""

from dataclasses import replace

import pytest
from jax.sharding import PartitionSpec

import kiwi
from kiwi.errors import CompilerUnavailableError, InvalidArgumentError
from kiwi.mesh import DeviceMesh, hardware
from kiwi.targets.registry import planned_target, target_of
from kiwi.xla.compilers import COMPILERS, compile_for, of_platform, resolved
from kiwi.xla.gpu import compiler as gpu_compiler
from kiwi.xla.tpu import compiler as tpu_compiler
from tests.helpers.planning import array

H100, PROCESSOR, V5E = hardware("h100-sxm"), hardware("cpu"), hardware("v5e")


@pytest.mark.parametrize(
    ("verify", "profile", "name"),
    [
        ("cpu", H100, "cpu"),
        ("cuda", H100, "cuda"),
        ("device", H100, "cpu"),  # the devices that are attached here
        (None, H100, "cuda"),
        (None, PROCESSOR, "cpu"),
        ("tpu", V5E, "tpu"),
        (None, V5E, "tpu"),
    ],
)
def test_the_check_settles_what_is_predicted_and_else_the_profile(verify, profile, name):
    assert planned_target(verify, profile).compiler is COMPILERS[name]


@pytest.mark.parametrize("profile", ["h100-sxm", "v5e", "cpu"])
def test_auto_is_the_profiles_own_compiler_or_the_cpus_with_a_note(profile, monkeypatch):
    own, notes = resolved("auto", hardware(profile))
    assert (own == target_of(hardware(profile)).name) == (notes == ())
    for backend in (gpu_compiler, tpu_compiler):
        monkeypatch.setattr(backend, "find_spec", lambda name: None, raising=False)
        monkeypatch.setattr(backend, "PLUGINS", ("jax-no-plugin",), raising=False)
    plan = kiwi.plan(lambda x: x + 1, array(8), mesh_shape=(2,), profile=profile)
    assert plan.compiled is not None and plan.compiled.target == "cpu"
    said = [note for note in plan.notes if "kiwi-planner[aot-" in note]
    assert len(said) == (profile != "cpu")


def test_a_name_that_is_no_compiler_is_refused():
    with pytest.raises(InvalidArgumentError, match="'rocm' is not a target") as caught:
        kiwi.plan(lambda x: x, array(8), mesh_shape=(2,), verify="rocm")
    assert "'cuda'" in caught.value.suggestion
    with pytest.raises(InvalidArgumentError):
        compile_for("rocm", kiwi.plan(lambda x: x, array(8), mesh_shape=(2,)).step)


def test_a_platform_without_rules_is_no_gpu():
    with pytest.raises(CompilerUnavailableError, match="platform 'neuron'"):
        of_platform("neuron")
    mesh = DeviceMesh.create((2,), replace(H100, backend="neuron"))
    with pytest.raises(CompilerUnavailableError, match="platform 'neuron'"):
        kiwi.plan(lambda x: x + 1, array(8), mesh=mesh, verify=None)
    assert kiwi.plan(lambda x: x + 1, array(8), mesh=mesh, verify="cpu").fits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_buffers_and_collectives_follow_the_same_compiler(dtype):
    def product(x, w):
        return x @ w

    given = PartitionSpec(None, "x"), PartitionSpec("x")

    def plan(verify):
        return kiwi.plan(
            product,
            array(512, 64, dtype=dtype),
            array(64, 512, dtype=dtype),
            mesh_shape=(8,),
            profile="h100-sxm",
            planner="xla",
            in_shardings=given,
            out_shardings=PartitionSpec("x"),
            verify=verify,
        )

    on_cpu, on_gpu = plan("cpu"), plan(None)
    assert set(on_gpu.estimate.collectives) == {"reduce-scatter"}
    assert on_cpu.compiled is not None and on_cpu.unforeseen_collectives == ()
    assert on_cpu.estimate.collectives == on_cpu.compiled.collectives
    # XLA:CPU sums to a buffer of its own.
    assert on_cpu.estimate.peak_bytes > on_gpu.estimate.peak_bytes
    assert on_cpu.estimate.step_seconds > on_gpu.estimate.step_seconds
