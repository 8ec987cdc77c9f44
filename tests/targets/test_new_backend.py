"""A new backend as `docs/extend/backend.md` adds it: with only the rules that all backends
share."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.errors import CompilerUnavailableError
from kiwi.kernels.facts import TargetFacts
from kiwi.mesh import DeviceMesh, Hardware, hardware
from kiwi.targets import registry
from kiwi.targets.registry import TARGETS, planned_target
from kiwi.targets.shared import SHARED
from kiwi.targets.target import Target
from kiwi.xla import compilers
from kiwi.xla.compiler import Compiler
from kiwi.xla.read.compiled_program import CompiledProgram
from kiwi.xla.step import Step
from tests.helpers.planning import array


class RocmCompiler(Compiler):
    """XLA for AMD's GPUs, which compiles only for attached devices."""

    def compile(self, step: Step) -> CompiledProgram:
        raise CompilerUnavailableError("XLA:ROCm compiles for attached devices alone.")

    def compile_only_devices(self, mesh: DeviceMesh) -> Any:
        raise CompilerUnavailableError("XLA:ROCm compiles for attached devices alone.")


ROCM = Target(
    SHARED,
    RocmCompiler("rocm", ("rocm",), {}, {}, dump="gpu_after_optimizations"),
    observed_on="mi300x",
)


@pytest.fixture
def mi300x(monkeypatch: pytest.MonkeyPatch) -> Hardware:
    monkeypatch.setitem(compilers.COMPILERS, "rocm", ROCM.compiler)
    monkeypatch.setitem(registry.TARGETS, "rocm", ROCM)
    return replace(hardware("h200-sxm"), name="mi300x", backend="rocm")


def step(w: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    def loss(w: list[jax.Array]) -> jax.Array:
        y = x
        for layer in w:
            y = jnp.tanh(y @ layer)
        return jnp.mean(y**2)

    return [a - 0.1 * b for a, b in zip(w, jax.grad(loss)(w), strict=True)]


def test_a_step_is_planned_with_the_rules_that_all_share(mi300x: Hardware):
    arguments = [array(256, 256)] * 3, array(4096, 256)
    options = {"mesh_shape": (4,), "profile": mi300x, "donate_argnums": 0}
    free = kiwi.plan(step, *arguments, verify=None, **options)
    assert free.execution.kernels.facts.target == "rocm"
    assert free.execution.kernels.passes == tuple(rule.name for rule in SHARED)
    budget = int(0.8 * free.estimate.peak_bytes)
    tight = kiwi.plan(step, *arguments, verify=None, memory_budget=budget, **options)
    assert tight.estimate.peak_bytes <= budget < free.estimate.peak_bytes


def test_its_facts_are_those_of_any_compiler(mi300x: Hardware):
    target = planned_target(None, mi300x)
    assert target is ROCM and target.facts(mi300x) == TargetFacts("rocm")


def test_all_targets_have_the_shared_rules():
    for target in TARGETS.values():
        positions = [target.rules.index(rule) for rule in SHARED]
        assert positions == sorted(positions)


def test_a_backend_without_a_target_is_said(mi300x: Hardware):
    unknown = replace(mi300x, backend="neuron")
    with pytest.raises(CompilerUnavailableError, match="'neuron'"):
        planned_target(None, unknown)
