"""A planned function inside of `jax.jit`, derivatives, `jax.vmap` and `jax.lax.scan`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import kiwi
from kiwi.errors import InvalidFunctionError
from kiwi.messages import topics

OPTIONS = {"mesh_shape": (2, 4), "profile": "cpu", "effort": "quick", "verify": None}
WEIGHTS = {"w": jnp.linspace(-1, 1, 64 * 64).reshape(64, 64) / 8}
BATCH = jnp.linspace(-1, 1, 128 * 64).reshape(128, 64)


def loss(weights, batch):
    return jnp.mean(jnp.tanh(jnp.tanh(batch @ weights["w"]) @ weights["w"]) ** 2)


@pytest.fixture(scope="module")
def planned():
    return kiwi.jit(loss, **OPTIONS)


def test_jit_runs_the_planned_program(planned):
    outer = jax.jit(lambda w, x: planned(w, x) + 1)
    np.testing.assert_allclose(outer(WEIGHTS, BATCH), loss(WEIGHTS, BATCH) + 1, rtol=1e-5)
    assert "sharding_constraint" in str(jax.make_jaxpr(planned)(WEIGHTS, BATCH))
    planned(WEIGHTS, BATCH)  # A plan that has run is not asked for tracers.
    np.testing.assert_allclose(jax.jit(planned)(WEIGHTS, BATCH), loss(WEIGHTS, BATCH), rtol=1e-5)
    assert jax.eval_shape(planned, WEIGHTS, BATCH).shape == ()


@pytest.mark.parametrize("verify", [None, "cpu"])
def test_a_plan_that_recomputes_is_made_inside_jit(verify):
    def recomputing(weights, batch):
        hidden = kiwi.hint(jnp.tanh(batch @ weights["w"]), recompute=True)
        return jnp.mean(jnp.tanh(hidden @ weights["w"]) ** 2)

    planned = kiwi.jit(jax.value_and_grad(recomputing), **{**OPTIONS, "verify": verify})
    value, gradient = jax.jit(planned)(WEIGHTS, BATCH)
    expected, expected_gradient = jax.value_and_grad(loss)(WEIGHTS, BATCH)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient["w"], expected_gradient["w"], rtol=1e-4, atol=1e-7)
    plan = planned.plan(WEIGHTS, BATCH)
    assert plan.residency_counts()["recompute"]
    assert bool(plan.compiled) == bool(verify)


def test_derivatives_are_those_of_the_function(planned):
    expected = jax.grad(loss)(WEIGHTS, BATCH)["w"]
    for gradient in (jax.grad(planned), jax.jit(jax.grad(planned)), jax.grad(jax.jit(planned))):
        np.testing.assert_allclose(gradient(WEIGHTS, BATCH)["w"], expected, rtol=1e-4, atol=1e-7)
    tangents = jax.jvp(planned, (WEIGHTS, BATCH), (WEIGHTS, BATCH))[1]
    wanted = jax.jvp(loss, (WEIGHTS, BATCH), (WEIGHTS, BATCH))[1]
    np.testing.assert_allclose(tangents, wanted, rtol=1e-4)


def test_a_custom_derivative_is_kept():
    @jax.custom_vjp
    def doubled(x):
        return 2 * x

    doubled.defvjp(lambda x: (doubled(x), None), lambda _, cotangent: (100 * cotangent,))
    planned = kiwi.jit(lambda x: doubled(x).sum(), **OPTIONS)
    for gradient in (jax.grad(planned), jax.grad(jax.jit(planned))):
        np.testing.assert_array_equal(gradient(BATCH), np.full(BATCH.shape, 100.0))


def test_integers_keys_and_keywords_have_no_derivative_in_the_way():
    def step(weights, rows, key, *, scale, twice=False):
        noise = jax.random.normal(key, (16, 64))
        return (weights["w"][rows] * noise).sum() * scale * (2 if twice else 1)

    planned = kiwi.jit(step, static_argnames="twice", **OPTIONS)
    args, named = (WEIGHTS, jnp.arange(16), jax.random.key(0)), {"scale": 3.0, "twice": True}
    found, expected = jax.grad(planned)(*args, **named), jax.grad(step)(*args, **named)
    np.testing.assert_allclose(found["w"], expected["w"], rtol=1e-5)


def test_vmap_and_scan(planned):
    batches = jnp.stack([BATCH, 2 * BATCH])
    expected = [loss(WEIGHTS, batch) for batch in batches]
    np.testing.assert_allclose(jax.vmap(planned, (None, 0))(WEIGHTS, batches), expected, rtol=1e-5)
    _, found = jax.lax.scan(lambda w, x: (w, planned(w, x)), WEIGHTS, batches)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_under_a_mesh_with_auto_axes():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        planned = kiwi.jit(loss, profile="cpu", effort="quick", verify=None)
        found = jax.jit(planned)(WEIGHTS, BATCH)
        assert planned.settings.mesh.axis_names == ("data", "model")
    np.testing.assert_allclose(found, loss(WEIGHTS, BATCH), rtol=1e-5)


def test_explicit_axes_are_refused():
    mesh = jax.make_mesh((2, 4), ("data", "model"))
    with jax.set_mesh(mesh):
        planned = kiwi.jit(loss, profile="cpu", effort="quick", verify=None)
        batch = jax.device_put(BATCH, NamedSharding(mesh, PartitionSpec("data")))
        weights = jax.device_put(WEIGHTS, NamedSharding(mesh, PartitionSpec()))
        planned(weights, batch)
        with pytest.raises(InvalidFunctionError) as caught:
            jax.jit(planned)(weights, batch)
    assert caught.value.topic is topics.EXPLICIT_INSIDE


@pytest.mark.parametrize("transform", [jax.jit, jax.grad])
def test_a_captured_tracer_is_refused(transform):
    with pytest.raises(InvalidFunctionError, match=r"type float32\[64,64\]") as caught:
        transform(lambda w: kiwi.jit(lambda x: loss(w, x), **OPTIONS)(BATCH))(WEIGHTS)
    assert caught.value.topic is topics.CAPTURED
