"""The planner "two-stage": sharding under growing budgets, then Rotor on the sharded chain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.errors import InfeasibleBudgetError
from kiwi.literature.planners.two_stage import BUDGETS, growing_budgets, least_bound_bytes
from tests.helpers.on_cpu import WAITING_ON_CPU
from tests.helpers.planning import WAITING

LAYERS, WIDTH, BATCH = 6, 64, 512


def _step(weights, x):
    def loss(ws):
        h = x
        for w in ws:
            h = jnp.tanh(h @ w) + h
        return jnp.mean(h**2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], value


def _arguments():
    keys = jax.random.split(jax.random.key(0), LAYERS + 1)
    weights = [jax.random.normal(k, (WIDTH, WIDTH)) / 8 for k in keys[:-1]]
    return weights, jax.random.normal(keys[-1], (BATCH, WIDTH))


def _planned(planner, budget, **given):
    options = {"mesh_shape": (2, 4), "verify": None, "time_limit_seconds": 2.0, "profile": WAITING}
    options |= given
    return kiwi.jit(_step, planner=planner, memory_budget=budget, donate_argnums=0, **options)


@pytest.fixture(scope="module")
def free():
    return _planned("alpa", "1TiB").plan(*_arguments())


def test_budgets_grow_from_the_memory_budget():
    budgets = growing_budgets(1000)
    assert budgets[:3] == [1000, 1300, 1690]
    assert len(budgets) == BUDGETS
    assert budgets[-1] == 10604  # 1.3 to the ninth power


def test_no_plan_peaks_below_the_bound(free):
    bound = least_bound_bytes(free.origin.planning)
    patient = {"time_limit_seconds": 10.0}
    with pytest.raises(InfeasibleBudgetError) as caught:
        _planned("joint", bound // 2, **patient).plan(*_arguments())
    least = caught.value.least_peak_bytes
    assert least is not None and bound <= least
    plan = _planned("joint", int(1.1 * least), **patient).plan(*_arguments())
    assert bound <= plan.estimate.peak_bytes <= 1.1 * least


def test_with_enough_memory_it_is_sharding_alone(free):
    plan = _planned("two-stage", "1TiB").plan(*_arguments())
    assert not plan.execution.recomputed
    assert plan.estimate.step_seconds == pytest.approx(free.estimate.step_seconds)
    assert "first stage" in plan.solve_result.message


def test_it_is_as_fast_as_sharding_alone_and_no_faster_than_joint_plans(free):
    budget = int(0.75 * free.estimate.peak_bytes)
    two_stage, alpa, joint = (
        _planned(planner, budget).plan(*_arguments()) for planner in ("two-stage", "alpa", "joint")
    )
    assert two_stage.estimate.peak_bytes <= budget
    fastest = two_stage.estimate.step_seconds
    assert fastest <= alpa.estimate.step_seconds * (1 + alpa.solve_result.gap)
    assert fastest >= joint.estimate.step_seconds * (1 - joint.solve_result.gap)
    assert fastest >= two_stage.solve_result.bound > 0


def test_a_compiled_plan_that_recomputes_meets_the_budget_and_computes_the_same(free):
    kept = _planned("alpa", "1TiB", profile=WAITING_ON_CPU, verify="cpu").plan(*_arguments())
    budget = int(0.9 * kept.compiled.peak_bytes)
    planned = _planned("two-stage", budget, profile=WAITING_ON_CPU, verify="cpu")
    plan = planned.plan(*_arguments())
    assert plan.execution.recomputed
    assert plan.estimate.recompute_seconds > 0
    assert plan.compiled.peak_bytes <= budget < kept.compiled.peak_bytes
    assert plan.rounds[-1].compiled_peak_bytes == plan.compiled.peak_bytes
    want = jax.jit(_step)(*_arguments())
    for expected, found in zip(
        jax.tree.leaves(want), jax.tree.leaves(planned(*_arguments())), strict=True
    ):
        np.testing.assert_allclose(expected, found, rtol=1e-4, atol=1e-5)


def test_an_infeasible_budget_names_the_smallest_peak_of_a_pair_and_a_bound():
    # 1.3⁹ times 200 kB suffices for the fastest sharding; no schedule of it does with 200 kB.
    with pytest.raises(InfeasibleBudgetError, match="persistent schedule") as caught:
        _planned("two-stage", 200_000).plan(*_arguments())
    least = caught.value.least_peak_bytes
    assert least > 200_000
    assert f"memory_budget={least}" in caught.value.suggestion
    # Weights, and what one matmul of a layer writes, on one of eight devices.
    bound = caught.value.least_peak_bound_bytes
    assert (LAYERS * WIDTH * WIDTH + BATCH * WIDTH) * 4 // 8 <= bound <= least
    assert "at least" in caught.value.cause
    again = _planned("two-stage", 2 * least).plan(*_arguments())
    assert again.estimate.peak_bytes <= 2 * least
