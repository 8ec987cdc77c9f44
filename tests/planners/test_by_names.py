"""`granularity="names"` and `plan.checkpoint_names()`."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import kiwi
from kiwi.errors import InfeasibleBudgetError, InvalidArgumentError

OPTIONS = {
    "mesh_shape": (2,),
    "profile": "v5e",
    "verify": None,
    "plan_cache": False,
    "effort": "quick",
    "donate_argnums": 0,
}
SIZES = {"up": (128, 512), "mid": (512, 512), "down": (512, 128)}


def layer(x, w):
    hidden = checkpoint_name(x @ w["up"], "up")
    hidden = checkpoint_name(jnp.tanh(hidden) @ w["mid"], "mid")
    return x + checkpoint_name(jnp.tanh(hidden) @ w["down"], "down")


def training_step(policy=None, *, layers=2, scanned=True):
    checkpointed = jax.checkpoint(layer, policy=policy)

    def loss(params, x):
        if scanned:
            x, _ = jax.lax.scan(lambda x, w: (checkpointed(x, w), None), x, params)
        else:
            for w in params:
                x = checkpointed(x, w)
        return jnp.mean(x**2)

    def step(params, x):
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - g, params, gradients), value

    def array(*shape):
        return jax.ShapeDtypeStruct(shape, "float32")

    if scanned:
        params = {name: array(layers, *shape) for name, shape in SIZES.items()}
    else:
        params = [{name: array(*shape) for name, shape in SIZES.items()}] * layers
    return step, params, array(4096, 128)


def by_policy(residencies, **options):
    """Returns the plan of a step that has a policy itself, in which only shardings are decided."""
    on = {r: [n for n, each in residencies.items() if each == r] for r in ("device", "offload")}
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=on["device"],
        names_which_can_be_offloaded=on["offload"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    step, *args = training_step(policy)
    own = {"planner": "xla", "respect_user_checkpoint": True}
    return kiwi.plan(step, *args, **OPTIONS, **own, **options)


@pytest.fixture(scope="module")
def brute_force():
    """Returns every policy without a host, with the plan of a step that has it."""
    choices = itertools.product(("device", "remat"), repeat=3)
    policies = [dict(zip(SIZES, each, strict=True)) for each in choices]
    return [(policy, by_policy(policy)) for policy in policies]


@pytest.mark.parametrize("part", [2.0, 0.75])
def test_no_policy_by_names_is_faster(brute_force, part):
    budget_bytes = int(part * max(plan.estimate.peak_bytes for _, plan in brute_force))
    step, *args = training_step()
    plan = kiwi.plan(
        step, *args, granularity="names", planner="xla", memory_budget=budget_bytes, **OPTIONS
    )
    fitting = [p for _, p in brute_force if p.estimate.peak_bytes <= budget_bytes]
    assert plan.fits
    assert plan.estimate.step_seconds == min(p.estimate.step_seconds for p in fitting)
    # The answer is the plan of the step that has this policy itself.
    (same,) = [p for policy, p in brute_force if policy == plan.checkpoint_names()]
    assert same.estimate.step_seconds == plan.estimate.step_seconds
    assert same.estimate.peak_bytes == plan.estimate.peak_bytes


def test_policies_are_read_back_from_a_plan(brute_force):
    for policy, plan in brute_force:
        read = policy | {"down": "remat"}  # The backward pass does not read its value.
        assert plan.checkpoint_names() == read


def test_offloading_is_read_back():
    asked = {"up": "offload", "mid": "device", "down": "remat"}
    assert by_policy(asked).checkpoint_names() == asked


def test_unrolled_layers_get_one_residency_and_a_file_keeps_it(tmp_path):
    step, *args = training_step(scanned=False)
    free = kiwi.plan(step, *args, granularity="names", planner="xla", **OPTIONS)
    budget_bytes = int(0.9 * free.peak_bytes)
    plan = kiwi.plan(
        step, *args, granularity="names", planner="xla", memory_budget=budget_bytes, **OPTIONS
    )
    names = plan.checkpoint_names()
    assert set(names) == set(SIZES) and "remat" in names.values()
    plan.save(tmp_path / "plan.json")
    again = kiwi.load_plan(tmp_path / "plan.json").apply(step).plan(*args)
    assert again.checkpoint_names() == names
    assert again.estimate.step_seconds == plan.estimate.step_seconds


def test_a_plan_of_operators_says_what_it_does_with_names():
    step, *args = training_step(scanned=False)
    free = kiwi.plan(step, *args, **OPTIONS)
    plan = kiwi.plan(step, *args, memory_budget=int(0.8 * free.peak_bytes), **OPTIONS)
    assert plan.checkpoint_names().keys() == SIZES.keys()
    assert {*plan.checkpoint_names().values()} <= {"device", "remat", "mixed"}


def test_a_budget_that_no_policy_meets():
    step, *args = training_step()
    with pytest.raises(InfeasibleBudgetError, match="No policy of the names up, mid, down"):
        kiwi.plan(step, *args, granularity="names", planner="xla", memory_budget="1MiB", **OPTIONS)


def test_a_step_without_names():
    with pytest.raises(InvalidArgumentError, match="no name of the step"):
        kiwi.plan(lambda x: x.sum(), jnp.ones((8, 8)), granularity="names", **OPTIONS)


@pytest.mark.parametrize(
    "options", [{"granularity": "layers"}, {"granularity": "names", "planner": "two-pass"}]
)
def test_options_that_cannot_be(options):
    step, *args = training_step()
    with pytest.raises(InvalidArgumentError):
        kiwi.plan(step, *args, **OPTIONS, **options)
