"""No other planner's plan that is predicted to meet a budget, and meets it, is faster than the plan
of "joint".

A plan that is predicted to need more, and compiles to less, does not count: "joint" does not look
for such plans.
"""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import kiwi
from benchmarks.hardware import priced_as
from kiwi.planners.registry import planners
from tests.helpers.perceptron import step_of

GAP = 0.01
OTHERS = ("alpa", "alpa+dots", "kiwi-full", "kiwi-reduced")


@given(
    layers=st.integers(2, 3),
    width=st.sampled_from([128, 512]),
    rows=st.sampled_from([512, 4096]),
    activation=st.sampled_from(["tanh", "gelu", "relu"]),
    mesh_shape=st.sampled_from([(1, 4), (2, 2)]),
    profile=st.sampled_from([priced_as(name, "cpu") for name in ("v100-sxm2", "h100-sxm")]),
    share=st.sampled_from([0.65, 0.8, 0.9]),
)
@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
def test_joint_is_as_fast_as_every_other_planner(
    layers, width, rows, activation, mesh_shape, profile, share
):
    step, weights = step_of(layers, width, activation)
    arguments = (weights, jax.ShapeDtypeStruct((rows, width), jnp.float32))
    _check(step, arguments, share, OTHERS, mesh_shape=mesh_shape, profile=profile)


def test_what_one_program_held_beyond_its_prediction_rules_out_no_other():
    """Of the two plans compiled first one is over by 158 bytes, the other by a fifth; with the
    excess of both in every plan, none was left. The other planner's plan needs as much as one that
    was over, so that lower limits come close to it, and no closer."""
    step, weights = step_of(2, 512, "relu")
    arguments = (weights, jax.ShapeDtypeStruct((512, 512), jnp.float32))
    profile = priced_as("v100-sxm2", "cpu")
    options = {"mesh_shape": (2, 2), "profile": profile}
    _check(step, arguments, 0.9, ["alpa+dots"], slower=2 * GAP, **options)


def _check(step, arguments, share, others, slower=GAP, **options):
    """Checks that "joint" has a plan within `share` of the free peak, and that no other planner's
    plan is faster by more than `slower`."""

    def planned(planner: str, budget: int | str) -> kiwi.Plan:
        own = {"planner": planner, "memory_budget": budget, "verify": "cpu", "gap": GAP, **options}
        return kiwi.plan(step, *arguments, effort="quick", **own)

    budget = int(share * planned("joint", "1TiB").peak_bytes)
    joint = planned("joint", budget)
    for name in others:
        assert name in planners()
        try:
            other = planned(name, budget)
        except kiwi.errors.KiwiError:
            continue  # It has no plan that meets the budget.
        assert other.compiled is not None and other.compiled.peak_bytes <= budget
        if other.estimate.peak_bytes > budget:
            continue
        most = (1 + slower) * other.estimate.step_seconds
        assert joint.estimate.step_seconds <= most, (name, other.estimate.step_seconds)


def test_the_step_at_which_others_were_faster():
    """5 layers of tanh on (1, 4) V100s at 80 %: "kiwi-full" was 5 % faster, as compiled."""
    step, weights = step_of(5, 1024, "tanh")
    x = jax.ShapeDtypeStruct((4096, 1024), jnp.float32)
    options = {
        "mesh_shape": (1, 4),
        "profile": priced_as("v100-sxm2", "cpu"),
        "verify": "cpu",
        "gap": 1e-3,
    }
    free = kiwi.plan(step, weights, x, **options)
    budget = int(0.8 * free.peak_bytes)
    seconds = {}
    for name in ("joint", "kiwi-full", "kiwi-reduced"):
        try:
            plan = kiwi.plan(step, weights, x, planner=name, memory_budget=budget, **options)
        except kiwi.errors.KiwiError:
            continue
        assert plan.compiled and plan.compiled.peak_bytes <= budget
        seconds[name] = plan.estimate.step_seconds
    assert seconds["joint"] == pytest.approx(min(seconds.values()), rel=1e-3)
