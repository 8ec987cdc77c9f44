"""The compiler that a plan predicts, and the error for a compiler that Kiwi does not know."""

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
from tests.helpers.on_cpu import ON_CPU
from tests.helpers.planning import array

H100, PROCESSOR, V5E = hardware("h100-sxm"), hardware("cpu"), hardware("v5e")


@pytest.mark.parametrize(
    ("verify", "profile", "name"),
    [
        ("cpu", H100, "cuda"),
        ("cuda", H100, "cuda"),
        ("device", H100, "cuda"),  # whatever is attached here
        ("cpu", replace(H100, backend="neuron"), "cpu"),  # of which no rules are known
        (None, H100, "cuda"),
        (None, PROCESSOR, "cpu"),
        ("tpu", V5E, "tpu"),
        (None, V5E, "tpu"),
    ],
)
def test_the_profile_settles_what_is_predicted(verify, profile, name):
    assert planned_target(verify, profile).compiler is COMPILERS[name]


@pytest.mark.parametrize("profile", ["h100-sxm", "v5e", "cpu"])
def test_auto_is_the_profiles_own_compiler_or_the_cpus_with_a_note(profile, monkeypatch):
    own, notes = resolved("auto", hardware(profile))
    assert (own == target_of(hardware(profile)).name) == (notes == ())
    for backend in (gpu_compiler, tpu_compiler):
        monkeypatch.setattr(backend, "find_spec", lambda name: None, raising=False)
        monkeypatch.setattr(backend, "PLUGINS", ("jax-no-plugin",), raising=False)
    plan = kiwi.plan(lambda x: x + 1, array(8), mesh_shape=(2,), profile=profile)
    if profile == "cpu":
        assert plan.compiled is not None and plan.compiled.target == "cpu"
    else:
        assert plan.compiled is None
        assert plan.cross_check is not None and plan.cross_check.program.target == "cpu"
    said = [note for note in plan.notes if "kiwi-planner[aot-" in note.text]
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
def test_a_plan_is_its_hardwares_whoever_checks_it(dtype):
    def product(x, w):
        return x @ w

    given = PartitionSpec(None, "x"), PartitionSpec("x")

    def plan(verify, profile="h100-sxm"):
        return kiwi.plan(
            product,
            array(512, 64, dtype=dtype),
            array(64, 512, dtype=dtype),
            mesh_shape=(8,),
            profile=profile,
            planner="xla",
            in_shardings=given,
            out_shardings=PartitionSpec("x"),
            verify=verify,
        )

    checked, unchecked, on_cpu = plan("cpu"), plan(None), plan("cpu", ON_CPU)
    assert set(unchecked.estimate.collectives) == {"reduce-scatter"}
    assert checked.estimate == unchecked.estimate and checked.decisions == unchecked.decisions
    assert checked.compiled is None and checked.unforeseen_collectives == ()
    # XLA:CPU sums to a buffer of its own, in place of that reduce-scatter.
    assert checked.cross_check is not None and on_cpu.compiled is not None
    program = checked.cross_check.program
    assert set(program.collectives) == set(on_cpu.estimate.collectives) == {"all-reduce"}
    assert checked.cross_check.expected_peak_bytes == on_cpu.estimate.peak_bytes


def test_a_cross_check_is_kept_in_files(tmp_path):
    plan = kiwi.plan(lambda x: x @ x.T, array(8, 8), mesh_shape=(2,), verify="cpu")
    assert plan.cross_check is not None
    plan.save(tmp_path / "plan.json")
    saved = kiwi.load_plan(tmp_path / "plan.json")
    assert saved.compiled is None and saved.cross_check is not None
    assert saved.cross_check.expected_peak_bytes == plan.cross_check.expected_peak_bytes
    assert saved.cross_check.program.peak_bytes == plan.cross_check.program.peak_bytes
