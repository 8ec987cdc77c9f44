"""The recomputation and offloading of the user's own `jax.checkpoint`, if it is respected."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import kiwi
from tests.helpers.planning import array

ARGS = (array(4, 256, 1024), array(4, 1024, 256)), array(8192, 256)
NAMES = {
    "names_which_can_be_saved": [],
    "names_which_can_be_offloaded": ["entry", "up"],
    "offload_src": "device",
    "offload_dst": "pinned_host",
}


def planned(policy: Any, *, respected: bool) -> kiwi.Plan:
    def layer(x, w):
        x = checkpoint_name(x, "entry")
        return x + jnp.tanh(checkpoint_name(x @ w[0], "up")) @ w[1], None

    layer = layer if policy is None else jax.checkpoint(layer, policy=policy)

    def step(ws, x):
        loss = lambda ws: jnp.mean(jax.lax.scan(layer, x, ws)[0] ** 2)  # noqa: E731
        value, grads = jax.value_and_grad(loss)(ws)
        return jax.tree.map(lambda w, g: w - g, ws, grads), value

    options = {"mesh_shape": (8,), "profile": "v5e", "verify": None, "plan_cache": False}
    return kiwi.plan(step, *ARGS, respect_user_checkpoint=respected, **options)


def test_what_a_policy_offloads_is_offloaded_if_it_is_respected_and_else_planned_anew():
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(**NAMES)
    free, anew, kept = (
        planned(None, respected=False),
        planned(policy, respected=False),
        planned(policy, respected=True),
    )
    assert anew.estimate.step_seconds == pytest.approx(free.estimate.step_seconds)
    assert anew.estimate.peak_bytes == free.estimate.peak_bytes
    assert anew.estimate.host_peak_bytes == 0
    both_bytes = 4 * 8192 * (256 + 1024) * 4 // 8
    assert kept.estimate.host_peak_bytes == both_bytes
    assert kept.estimate.peak_bytes < free.estimate.peak_bytes - 0.75 * both_bytes
    assert kept.residency_counts()["offload"] == 2


def test_what_the_user_recomputes_counts_as_recomputed():
    nothing = jax.checkpoint_policies.nothing_saveable
    anew, kept = (planned(nothing, respected=respected) for respected in (False, True))
    assert anew.estimate.recompute_seconds == 0 and "nothing is recomputed" in str(anew)
    assert kept.residency_counts()["recompute"] >= 1
    assert "nothing is recomputed" not in str(kept)
    more_seconds = kept.estimate.step_seconds - anew.estimate.step_seconds
    assert kept.estimate.recompute_seconds == pytest.approx(more_seconds, rel=0.5)
    assert kept.estimate.compute_seconds == pytest.approx(anew.estimate.compute_seconds, rel=0.1)
