"""`kiwi.layers`: the same numbers as a scan, for any number of stages, and plans of pipelines."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi import errors
from kiwi.mesh import CATALOGUE

LAYERS, SAMPLES, WIDTH = 8, 16, 8


def body(x, layer):
    """A layer that is not defined at zeros, like a norm without epsilon."""
    h = x["h"] / jnp.linalg.norm(x["h"], axis=-1, keepdims=True)
    return {"h": x["h"] + jnp.tanh(h @ layer["w"]) * (1 + x["place"][:, None]), **rest(x)}, None


def rest(x):
    return {"place": x["place"]}


def loss(params, x, remat=False, **pipeline):
    x = {"h": x, "place": jnp.arange(x.shape[0]) % 3}
    own = jax.checkpoint(body) if remat else body
    found, _ = kiwi.layers(own, x, params, **pipeline)
    return jnp.mean(jnp.sin(found["h"]) ** 2)


@functools.cache
def inputs():
    w, x = jax.random.split(jax.random.key(0))
    params = {"w": jax.random.normal(w, (LAYERS, WIDTH, WIDTH)) / 3}
    return params, jax.random.normal(x, (SAMPLES, WIDTH))


@functools.cache
def found_by(**pipeline):
    return jax.jit(jax.value_and_grad(functools.partial(loss, **pipeline)))(*inputs())


def assert_same(found, wanted, rtol=1e-5):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-7)


@pytest.mark.parametrize("microbatches", [1, 4, 8])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_pipeline_computes_the_numbers_of_the_scan(stages, microbatches):
    assert_same(found_by(stages=stages, microbatches=microbatches), found_by())


@pytest.mark.parametrize("stages, microbatches, rounds", [(2, 2, 2), (2, 8, 4), (4, 4, 2)])
def test_the_circular_schedule_does_too(stages, microbatches, rounds):
    found = found_by(stages=stages, microbatches=microbatches, rounds=rounds)
    assert_same(found, found_by())


def test_recomputation_changes_nothing():
    assert_same(found_by(stages=4, microbatches=4, remat=True), found_by())
    assert_same(found_by(stages=2, microbatches=4, rounds=2, remat=True), found_by())


def test_one_stage_is_the_scan():
    params, x = inputs()
    step = lambda x, w: (x @ w, jnp.sum(x))  # noqa: E731
    assert_same(kiwi.layers(step, x, params["w"]), jax.lax.scan(step, x, params["w"]))


@pytest.mark.parametrize(
    "pipeline, message",
    [
        ({"stages": 3}, "8 layers are no multiple of 3 stages"),
        ({"stages": 2, "microbatches": 5}, "16 samples are no multiple of 5"),
        ({"stages": 4, "microbatches": 2, "rounds": 2}, "4 microbatches at least"),
        ({"stages": 2, "microbatches": 0}, "no pipeline"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(pipeline, message):
    with pytest.raises(errors.InvalidArgumentError, match=message):
        loss(*inputs(), **pipeline)


def test_layers_with_results_are_refused():
    params, x = inputs()
    with pytest.raises(errors.InvalidArgumentError, match="result of each layer"):
        kiwi.layers(lambda x, w: (x @ w, x), x, params["w"], stages=2)


SLOW = replace(CATALOGUE["cpu"], name="slow", flops_per_second={"float32": 1e3, "float64": 1e3})
"""Devices on which only computation takes time."""


def train_step(w, x, **pipeline):
    """Widths and samples of a microbatch are odd, so that only stages can be sharded."""

    def total(w):
        found, _ = kiwi.layers(lambda x, w: (x + jnp.tanh(x @ w), None), x, w, **pipeline)
        return jnp.mean(jnp.sin(found) ** 2)

    value, gradient = jax.value_and_grad(total)(w)
    return w - 0.1 * gradient, value


@pytest.mark.parametrize(
    "devices, pipeline",
    [
        (4, {"stages": 4, "microbatches": 4}),
        (2, {"stages": 4, "microbatches": 4}),
        (2, {"stages": 2, "microbatches": 4, "rounds": 2}),
    ],
)
def test_stages_are_planned_along_the_mesh_and_move_by_collective_permutes(devices, pipeline):
    keys = jax.random.split(jax.random.key(1))
    w, x = jax.random.normal(keys[0], (4, 7, 7)) / 3, jax.random.normal(keys[1], (12, 7))
    step = functools.partial(train_step, **pipeline)
    planned = kiwi.jit(step, mesh_shape=(devices,), profile=SLOW, effort="quick", verify="cpu")
    plan = planned.plan(w, x)
    shifts = [d for d in plan.decisions if d.opcode == "custom_call"]
    assert len(shifts) == 2 and all(d.sharding[0] == "x" for d in shifts)
    ticks = pipeline["microbatches"] * pipeline.get("rounds", 1) + pipeline["stages"] - 1
    count = {use.kind: use.count for use in plan.estimate.collective_uses}
    assert count["collective-permute"] == 2 * ticks
    compiled = {use.kind: use.count for use in plan.compiled.collective_uses}
    assert compiled["collective-permute"] == count["collective-permute"]
    assert_same(planned(w, x), jax.jit(train_step)(w, x))


def test_a_pipeline_is_recomputed_where_the_budget_asks_for_it():
    keys = jax.random.split(jax.random.key(2))
    w, x = jax.random.normal(keys[0], (8, 7, 7)) / 3, jax.random.normal(keys[1], (84, 7))
    step = functools.partial(train_step, stages=4, microbatches=4)
    planned = kiwi.jit(step, mesh_shape=(4,), profile=SLOW, effort="quick", verify="cpu")
    tight = planned.with_options(memory_budget=int(0.8 * planned.plan(w, x).peak_bytes))
    plan = tight.plan(w, x)
    assert plan.residency_counts()["recompute"] and plan.fits
    assert_same(tight(w, x), jax.jit(train_step)(w, x))
