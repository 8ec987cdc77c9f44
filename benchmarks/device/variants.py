"""What is run: one GPT as written, with `jax.checkpoint`, and planned under several budgets."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

import kiwi
from examples import gpt
from examples._common import Remat
from examples.baselines import Baseline, baseline_step, estimate_baseline
from kiwi.mesh import DeviceMesh
from kiwi.xla.compilers import compile_for

BASE = gpt.GptConfig(
    layers=12, width=2048, heads=16, batch=1, sequence=1024, vocabulary=32768, dtype="bfloat16"
)
"""The model; its batch is grown until the step as written fills the card."""

REMATS: tuple[Remat, ...] = (None, "full", "dots", "dots_no_batch")


@dataclass(frozen=True)
class Runnable:
    """A compiled step over flat leaves: `run(*leaves)` returns flat results, state first.

    - `predicted_peak_bytes`, `predicted_step_seconds`: None where Kiwi cannot predict it.
    - `compiled_peak_bytes`: as the compiler for this device reports it.
    - `result_count`: how many of the results replace the first leaves.
    """

    name: str
    run: Callable[..., Any]
    result_count: int
    predicted_peak_bytes: int | None
    predicted_step_seconds: float | None
    compiled_peak_bytes: int


def filling_batch(memory_bytes: int, profile: str, *, most: int = 512) -> int:
    """The largest power of two whose step as written is predicted to fit the memory, at least 1."""
    batch = 1
    while batch < most and _predicted_peak(2 * batch, profile) <= memory_bytes:
        batch *= 2
    return batch


def _predicted_peak(batch: int, profile: str) -> int:
    config = replace(BASE, batch=batch)
    return _as_written(config, None, profile).peak_bytes


@functools.cache
def _as_written(config: gpt.GptConfig, remat: Remat, profile: str) -> Any:
    state, batch = gpt.abstract_state(config), gpt.abstract_batch(config)
    return estimate_baseline(
        _baseline(config, remat), state, batch, mesh_shape=(1, 1), profile=profile
    )


def _baseline(config: gpt.GptConfig, remat: Remat) -> Baseline:
    specs = gpt.data_parallel_specs(gpt.abstract_state(config), ())
    return Baseline(remat or "none", gpt.make_train_step(config, remat=remat), specs)


def variants(
    config: gpt.GptConfig, profile: str, shares: Sequence[float], time_limit_seconds: float
) -> list[Callable[[], Runnable]]:
    """By hand with each policy, then planned under shares of the predicted peak as written.

    Each compiles when it is called.

    **Raises** (when called): `kiwi.errors.KiwiError` if it cannot be planned,
    `jax.errors.JaxRuntimeError` if it cannot be compiled.
    """
    by_hand = [functools.partial(_by_hand, config, remat, profile) for remat in REMATS]
    planned = [
        functools.partial(_planned, config, profile, share, time_limit_seconds) for share in shares
    ]
    return [*by_hand, *planned]


def _by_hand(config: gpt.GptConfig, remat: Remat, profile: str) -> Runnable:
    state, batch = gpt.abstract_state(config), gpt.abstract_batch(config)
    mesh = DeviceMesh.create((1, 1), profile)
    step = baseline_step(_baseline(config, remat), state, batch, mesh)
    estimate = _as_written(config, remat, profile)
    compiled = compile_for("device", step)
    return Runnable(
        f"jax.checkpoint {remat}" if remat else "as written",
        step.jit(mesh.jax_mesh()),
        len(jax.tree.leaves(state)),
        estimate.peak_bytes,
        estimate.step_seconds,
        compiled.peak_bytes,
    )


def _planned(
    config: gpt.GptConfig,
    profile: str,
    share: float,
    time_limit_seconds: float,
) -> Runnable:
    budget_bytes = int(share * _as_written(config, None, profile).peak_bytes)
    state, batch = gpt.abstract_state(config), gpt.abstract_batch(config)
    plan = kiwi.plan(
        gpt.make_train_step(config),
        state,
        batch,
        mesh_shape=(1, 1),
        profile=profile,
        memory_budget=budget_bytes,
        donate_argnums=0,
        verify="device",
        time_limit_seconds=time_limit_seconds,
    )
    assert plan.compiled is not None
    return Runnable(
        f"planned {share:.0%}",
        plan.jit(plan.mesh.jax_mesh()),
        len(jax.tree.leaves(state)),
        plan.estimate.peak_bytes,
        plan.estimate.step_seconds,
        plan.compiled.peak_bytes,
    )
