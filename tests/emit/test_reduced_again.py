"""Recomputed softmaxes, whose gradients reduce the rows themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.emit.reduced_again import reduced_again
from kiwi.hlo.graph import Phase
from tests.helpers.planning import array, random_arrays

HEADS = array(2, 128, 32), array(2, 32, 128), array(2, 128, 32)


def attended(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.softmax(0.125 * (q @ k)) @ v


def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.sum(jnp.sin(attended(q, k, v)))


def masked(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    mask = jnp.tril(jnp.ones((q.shape[1], k.shape[2]), bool))
    scores = jnp.where(mask[None], 0.125 * (q @ k), -1e9)
    return jnp.sum(jnp.sin(jax.nn.softmax(scores) @ v))


def scanned(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    found, _ = jax.lax.scan(lambda x, _: (attended(x, k, v), None), q, length=3)
    return jnp.sum(jnp.sin(found))


def planned(function, planner: str, profile: str = "h100-sxm"):
    gradient = jax.grad(function, (0, 1, 2))
    return kiwi.jit(gradient, mesh_shape=(2,), verify=None, profile=profile, planner=planner)


@pytest.mark.parametrize("function", [loss, scanned])
def test_gradients_reduce_the_rows_of_a_softmax_that_is_computed_again(function):
    step = planned(function, "alpa+dots")
    plan = step.plan(*HEADS)
    units = plan.execution.units.units
    found = reduced_again(plan.execution)
    assert found and all(units[reader].phase is Phase.BACKWARD for reader in found)
    reductions = plan.execution.kernels.rows
    for own in (own for each in found.values() for own in each):
        largest, exponentials = (reductions[k] for k in own.units)
        assert largest.rows == exponentials.rows == own.rows
        assert exponentials.is_summed_once and not largest.is_summed_once
    arguments = random_arrays(HEADS)
    results = step(*arguments), jax.grad(function, (0, 1, 2))(*arguments)
    for mine, other in zip(*results, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "planner", "profile"),
    [
        (loss, "alpa", "h100-sxm"),
        (masked, "alpa+dots", "h100-sxm"),
        (loss, "alpa+dots", "v5e"),
        (loss, "alpa+dots", "v100-sxm2"),
    ],
)
def test_one_kernel_reduces_where_another_one_would_not_be_free(function, planner, profile):
    """Nothing is recomputed, there is a mask, or the compiler reduces rows apart."""
    assert not reduced_again(planned(function, planner, profile).plan(*HEADS).execution)
