"""The device benchmark without a GPU, and its parts on CPU devices."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import kiwi
from benchmarks.device.models import BY_HAND, arguments
from benchmarks.device.planning import planned
from benchmarks.device.timing import TRACED, kernels, measure
from benchmarks.emission.variants import Case, plain_step
from benchmarks.timed_step import Training
from examples import gpt, llama
from tests.helpers.on_cpu import ON_CPU

ROOT = Path(__file__).parents[1]
TINY = Case(gpt, replace(gpt.SIZES["tiny"], layers=1), (1,))


def test_without_a_gpu_it_says_so_and_exits_with_0(tmp_path: Path):
    out = tmp_path / "device.json"
    command = [sys.executable, "-m", "benchmarks.device", f"--out={out}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "No NVIDIA GPU is attached: nothing is measured."
    assert not out.exists()


def test_plans_are_made_here_and_run_there(tmp_path: Path):
    """Made in a folder, read from there, and measured beside the step as written."""
    path = tmp_path / "free.plan"
    row = planned(TINY, path, None, None, profile=ON_CPU, verify="auto")
    assert row["predicted_step_seconds"] > 0 and row["check_peak_bytes"] > 0
    refused = planned(TINY, path, row["check_peak_bytes"] // 4, None, profile=ON_CPU, verify="auto")
    assert refused.keys() == {"refused"}
    plan = kiwi.load_plan(path).apply(TINY.train_step()).plan(*TINY.arguments)
    state, batch = arguments(TINY)
    leaves = jax.tree.leaves((state, batch))
    for step in (
        plan.step,
        plain_step(plan, TINY.train_step(remat=BY_HAND["jax.checkpoint full"])),
    ):
        compiled = step.compile(jax.devices(), {})
        training = Training(compiled, [leaf.copy() for leaf in leaves], len(jax.tree.leaves(state)))
        found = measure(training, runs=3)
        assert 0 < found.fastest_seconds <= found.median_seconds <= found.slowest_seconds


def test_a_state_goes_from_step_to_step():
    def step(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        return [x + y, x * 0]

    training = Training(step, [jnp.zeros(()), jnp.ones(())], 1)
    training.run(5)
    assert training._leaves == [5.0, 1.0]


def test_models_without_a_state_get_an_arbitrary_one():
    state, tokens = arguments(Case(llama, llama.SIZES["tiny"], (1,)))
    assert all((leaf >= 0).all() for leaf in jax.tree.leaves(state))
    assert tokens.dtype == "int32"


def test_kernels_are_told_by_instruction():
    """Of the streams of a GPU alone; what is of no instruction has its own name."""
    events = [
        SimpleNamespace(name="sm90_gemm", duration_ns=2e6, stats=[("hlo_op", "cublas.1")]),
        SimpleNamespace(name="epilogue", duration_ns=1e6, stats=[("hlo_op", "cublas.1")]),
        SimpleNamespace(name="MemcpyD2H", duration_ns=3e6, stats=[]),
    ]
    lines = [SimpleNamespace(name=n, events=events) for n in ("Stream #1(Compute)", "XLA Ops")]
    planes = [SimpleNamespace(name=n, lines=lines) for n in ("/device:GPU:0", "/host:CPU")]
    found = kernels(SimpleNamespace(planes=planes))
    assert found["cublas.1"]["seconds"] * TRACED == pytest.approx(3e-3)
    assert found["MemcpyD2H"]["count"] * TRACED == pytest.approx(1)
