"""Corrections of seconds from compiled programs, and the plans that follow from them."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.campaign import shares
from kiwi.campaign.learnt_seconds import learnt
from kiwi.corrections import NO_CORRECTIONS, Correction, Corrections
from kiwi.hlo import independent_batches
from kiwi.mesh import TensorSharding
from kiwi.plans.plan_cache import request_digest
from kiwi.problem.corrected import corrected, kind_of
from kiwi.problem.strategy_table import StrategyTable

ROWS, LENGTH = 2048, 2048
WHOLE, CUT = TensorSharding(((), ())), TensorSharding(((0,), ()))


def step(w: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def loss(w: jax.Array) -> jax.Array:
        y = jnp.fft.irfft(jnp.fft.rfft(x) * w, n=LENGTH)
        return jnp.mean(y**2)

    value, gradient = jax.value_and_grad(loss)(w)
    return w - 0.1 * gradient, value


ARGUMENTS = (
    jax.ShapeDtypeStruct((LENGTH // 2 + 1,), "float32"),
    jax.ShapeDtypeStruct((ROWS, LENGTH), "float32"),
)
OPTIONS: dict[str, Any] = {"mesh_shape": (8,), "profile": "cpu", "effort": "quick"}


@pytest.fixture
def unknown_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the rule that each device can transform its own rows, which XLA gathers."""
    monkeypatch.delitem(independent_batches._INNER_RANKS, "fft")


@pytest.mark.usefixtures("unknown_transforms")
def test_gathers_that_no_rule_knows_are_learnt(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(shares, "MOST_CORRECTIONS", 0)
        first = kiwi.plan(step, *ARGUMENTS, **OPTIONS)
    assert first.compiled is not None and first.compiled.step_seconds is not None
    # What it was planned as is of the prices before; the estimate is by what was learnt.
    planned = first.solve_result.bound
    assert first.compiled.step_seconds > shares.SLOWER_PROGRAM * planned
    assert {entry.name for entry in first.corrections.entries} >= {"fft"}
    plan = kiwi.plan(step, *ARGUMENTS, **OPTIONS)
    assert plan.compiled is not None and plan.compiled.step_seconds is not None
    assert plan.compiled.step_seconds <= first.compiled.step_seconds
    assert plan.time_ratio is not None and 0.8 < plan.time_ratio < 1.25
    assert "with what programs took" in {name for t in plan.history for name in t.within}


@pytest.mark.usefixtures("unknown_transforms")
def test_corrections_are_kept_in_files_and_used_by_the_next_plan(tmp_path):
    plan = kiwi.plan(step, *ARGUMENTS, **OPTIONS)
    plan.save(tmp_path / "plan.json")
    saved = kiwi.load_plan(tmp_path / "plan.json").apply(step).plan(*ARGUMENTS)
    assert saved.corrections == plan.corrections != NO_CORRECTIONS
    assert saved.deviations == plan.deviations
    # What the saved plan explains and changes, it prices as the plan was priced.
    assert saved.origin is not None
    assert saved.origin.settings.corrections == plan.corrections
    again = kiwi.plan(step, *ARGUMENTS, corrections=saved.corrections, **OPTIONS)
    assert again.compiled is not None and plan.compiled is not None
    assert again.compiled.step_seconds == pytest.approx(plan.compiled.step_seconds, rel=0.05)


def test_nothing_is_learnt_where_the_program_takes_what_was_planned():
    plan = kiwi.plan(
        lambda w, x: jnp.tanh(x @ w),
        *[jax.ShapeDtypeStruct((2048, 2048), "float32")] * 2,
        **OPTIONS,
    )
    assert plan.compiled is not None and plan.compiled.time is not None
    seconds = plan.estimate.step_seconds
    as_planned = replace(plan.compiled.time, step_seconds=1.2 * seconds)
    assert learnt(replace(plan, compiled=replace(plan.compiled, time=as_planned))) == ()


def test_a_correction_is_of_its_sharding_or_of_all():
    plan = kiwi.plan(
        lambda x: x @ x, jax.ShapeDtypeStruct((64, 64), "float32"), mesh_shape=(4,), verify=None
    )
    units = plan.execution.units
    (unit,) = units.units
    strategies = StrategyTable(plan.execution.kernels, plan.mesh).all_of(unit)
    kind = kind_of(units, unit)
    chosen = strategies[0]
    of_one = Correction(kind, "dot", chosen.reads, chosen.results, seconds=7.0)
    of_all = Correction(kind, "dot", factor=3.0)
    found = corrected(Corrections((of_one, of_all)), units, unit, strategies)
    assert found[0].compute_seconds == 7.0
    for before, after in zip(strategies[1:], found[1:], strict=True):
        assert after.compute_seconds == 3.0 * before.compute_seconds
        assert after.collectives == before.collectives
    other = Correction("another kind", "dot", factor=3.0)
    assert corrected(Corrections((other,)), units, unit, strategies) == strategies


def test_later_corrections_replace_earlier_ones():
    old, new = (Correction("k", "dot", (WHOLE,), (CUT,), seconds=s) for s in (1.0, 2.0))
    of_all = Correction("k", "dot", factor=2.0)
    assert Corrections((old, of_all)).and_also([new]).entries == (new, of_all)


def test_a_request_with_corrections_is_another_one():
    """Else the plan cache would answer it with the plan of the prices before."""
    planned = kiwi.jit(step, mesh_shape=(8,), verify=None)
    traced = planned.traced(*ARGUMENTS)
    given = Corrections((Correction("k", "dot", factor=2.0),))
    corrected_settings = replace(planned.settings, corrections=given)
    digests = [request_digest(traced, s) for s in (planned.settings, corrected_settings)]
    assert digests[0] != digests[1]
