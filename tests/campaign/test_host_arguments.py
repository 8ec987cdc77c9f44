"""Arguments that the plan itself places in host memory: which ones, when, and the gain."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.campaign.host_arguments import host_sets
from kiwi.errors import InfeasibleBudgetError, InvalidArgumentError
from tests.helpers.adam import OPTIMIZER, adam_step

WIDTHS, BATCH = (64, 128, 64), 32
WEIGHT_BYTES = WIDTHS[0] * WIDTHS[1] * 4
OPTIONS: dict[str, Any] = {
    "mesh_shape": (1,),
    "profile": "v5e",
    "verify": None,
    "donate_argnums": 0,
    "effort": "quick",
}


def loss(params: list[jax.Array], x: jax.Array) -> jax.Array:
    for weight in params:
        x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)


step = adam_step(loss)


def make_state() -> Any:
    rng = np.random.default_rng(0)
    shapes = itertools.pairwise(WIDTHS)
    params = [jnp.asarray(rng.standard_normal(shape) / 16, "float32") for shape in shapes]
    return params, OPTIMIZER.init(params)


STATE = jax.eval_shape(make_state)
X = jax.ShapeDtypeStruct((BATCH, WIDTHS[0]), "float32")


@functools.cache
def least_bytes() -> int:
    """Returns the least peak of the step with its arguments on the device."""
    with pytest.raises(InfeasibleBudgetError) as refused:
        kiwi.plan(step, STATE, X, memory_budget="1KiB", **OPTIONS)
    least = refused.value.least_peak_bytes
    assert least is not None
    return least


def test_moments_go_before_parameters_and_numbers_stay():
    """Two parameters, a count and four moments of one size: the update alone reads the moments."""
    paths = ["params/0", "params/1", "count", "mu/0", "mu/1", "nu/0", "nu/1", "x"]
    traced = kiwi.jit(step, **OPTIONS).traced(STATE, X)
    assert len(traced.call.paths) == len(paths)
    sets = host_sets(traced, {})
    names = [{paths[k] for k in each} for each in sets]
    assert names == [
        set(),
        {"mu/0"},
        {"mu/0", "mu/1"},
        {"mu/0", "mu/1", "nu/0"},
        {"mu/0", "mu/1", "nu/0", "nu/1"},
        {"mu/0", "mu/1", "nu/0", "nu/1", "params/0"},
        {"mu/0", "mu/1", "nu/0", "nu/1", "params/0", "params/1"},
    ]
    mu, nu = paths.index("mu/0"), paths.index("nu/0")
    given = host_sets(traced, {mu: "pinned_host", nu: "device"})
    assert all(mu in each and nu not in each for each in given)


def test_where_memory_is_ample_nothing_moves():
    plan = kiwi.plan(step, STATE, X, host_memory_budget="1GiB", offload_arguments=True, **OPTIONS)
    assert plan.estimate.host_peak_bytes == 0
    assert not plan.traced.program.host_values


def test_a_budget_below_the_least_of_the_device_is_met():
    asked = {"memory_budget": least_bytes() - 2 * WEIGHT_BYTES, **OPTIONS}
    plan = kiwi.plan(step, STATE, X, host_memory_budget="1GiB", offload_arguments=True, **asked)
    assert plan.fits and plan.estimate.host_peak_bytes >= 3 * WEIGHT_BYTES
    assert "Of the arguments 160.00 KiB lie" in plan.notes[-1].text
    assert "state/0/0, state/1/0/mu/0, state/1/0/mu/1 and 2 more" in plan.notes[-1].text
    with pytest.raises(InfeasibleBudgetError):
        kiwi.plan(step, STATE, X, host_memory_budget="32KiB", offload_arguments=True, **asked)


def test_training_computes_the_same_and_a_saved_plan_puts_them_there_again(tmp_path):
    options = {**OPTIONS, "mesh_shape": (2,), "memory_budget": int(0.5 * least_bytes()), "gap": 0.1}
    planned = kiwi.jit(step, host_memory_budget="1GiB", offload_arguments=True, **options)
    plan = planned.plan(STATE, X)
    assert plan.estimate.host_peak_bytes > 0
    plan.save(tmp_path / "plan.json")
    again = kiwi.load_plan(tmp_path / "plan.json").apply(step)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((BATCH, WIDTHS[0])), "float32")
    wanted = make_state()
    for _ in range(3):
        wanted, value = jax.jit(step)(wanted, x)
    for function in (planned, again):
        state = make_state()
        for _ in range(3):
            state, found = function(state, x)
        np.testing.assert_allclose(found, value, rtol=1e-5)
        kinds = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(state[1][0].mu)}
        assert kinds == {"pinned_host"}
        for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_it_is_never_slower_than_without():
    """What a larger set predicts to be slower is not planned."""
    budget = {"memory_budget": int(1.02 * least_bytes()), "host_memory_budget": "1GiB"}
    plain = kiwi.plan(step, STATE, X, **budget, **OPTIONS)
    plan = kiwi.plan(step, STATE, X, offload_arguments=True, **budget, **OPTIONS)
    assert plan.estimate.step_seconds <= plain.estimate.step_seconds


def test_without_a_budget_of_the_host_it_is_refused():
    with pytest.raises(InvalidArgumentError, match="host_memory_budget"):
        kiwi.plan(step, STATE, X, offload_arguments=True, **OPTIONS)


def test_a_compiler_without_host_memory_leaves_them_on_the_device():
    options = {**OPTIONS, "profile": "cpu", "verify": "cpu", "host_memory_budget": "1GiB"}
    plan = kiwi.plan(step, STATE, X, offload_arguments=True, **options)
    assert not plan.traced.program.host_values
    assert any("Nothing is offloaded" in note.text for note in plan.notes)
