"""Recipes as data, priced and compared."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from flax.core import meta, spmd
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

import kiwi
from kiwi.errors import InvalidArgumentError
from kiwi.recipes import Recipe, Step, best, compare, price

OPTIONS = {"profile": "v5e", "donate_argnums": 0, "plan_cache": False, "effort": "quick"}
RULES = (("rows", "data"), ("embed", None), ("mlp", "model"))
RECIPE = Recipe({"data": 2, "model": 2}, logical_rules=RULES, residencies={"up": "device"})


def layer(x, w):
    up, down = w["up"].value, w["down"].value
    hidden = jnp.tanh(checkpoint_name(x @ up, "up"))
    return x + checkpoint_name(hidden @ down, "down")


def loss(params, x):
    for w in params:
        x = jax.checkpoint(layer)(x, w)
    return jnp.mean(x**2)


def train_step(params, x):
    value, gradients = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def step_of(recipe):
    def boxed(names, *shape):
        return meta.Partitioned(jax.ShapeDtypeStruct(shape, "float32"), names)

    w = {"up": boxed(("embed", "mlp"), 128, 512), "down": boxed(("mlp", "embed"), 512, 128)}
    batch = jax.ShapeDtypeStruct((recipe.batch_size or 8192, 128), "float32")
    return Step(train_step, ([w] * 3, batch), OPTIONS)


@pytest.fixture(scope="module")
def priced():
    return price(step_of, RECIPE)


def test_a_recipe_is_frozen_data():
    same = replace(RECIPE, residencies={"up": "device"})
    assert same == RECIPE and RECIPE.axes == {"data": 2, "model": 2}
    twice = Recipe({"fsdp": 256}, slices={"fsdp": 2})
    assert (twice.axes, twice.device_count, twice.slice_count) == ({"fsdp": 512}, 512, 2)
    with pytest.raises(TypeError):
        twice.mesh["fsdp"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    "wrong",
    [
        {"mesh": {}},
        {"mesh": {"data": 0}},
        {"mesh": {"data": 2}, "slices": {"fsdp": 2}},
        {"mesh": {"data": 2}, "residencies": {"up": "host"}},
    ],
)
def test_recipes_that_cannot_be(wrong):
    with pytest.raises(InvalidArgumentError):
        Recipe(**wrong)


def test_arguments_lie_as_the_rules_say(priced):
    specs = priced.plan.partition_specs().by_path
    assert specs["params/0/up/value"] == PartitionSpec(None, "model")
    assert specs["params/0/down/value"] == PartitionSpec("model", None)


def test_nothing_is_decided(priced):
    step = step_of(RECIPE)
    written = kiwi.plan(
        step.under(RECIPE),
        *step.args,
        **OPTIONS,
        mesh=jax.sharding.AbstractMesh((2, 2), ("data", "model")),
        planner="xla",
        verify=None,
        respect_user_checkpoint=True,
        in_shardings=priced.plan.in_shardings,
    )
    assert priced.seconds == written.estimate.step_seconds
    assert priced.peak_bytes == written.estimate.peak_bytes


def test_recomputing_takes_time_and_saves_memory(priced):
    again = price(step_of, replace(RECIPE, residencies={}))
    assert again.seconds > priced.seconds and again.peak_bytes < priced.peak_bytes


def test_the_best_recipe_is_no_slower_and_fits(priced):
    start = replace(RECIPE, residencies={})
    found = best(step_of, start, memory_budget=priced.peak_bytes)
    assert found.recipe.residencies is not None
    assert found.recipe.residencies["up"] == "device"
    assert found.seconds <= price(step_of, start).seconds
    assert found.peak_bytes <= priced.peak_bytes
    # Priced as a recipe, it has the same figures.
    assert price(step_of, found.recipe).seconds == found.seconds


def test_a_comparison_names_the_change_that_gains_most(priced):
    theirs = price(step_of, replace(RECIPE, residencies={"down": "offload", "up": "remat"}))
    own = price(step_of, replace(RECIPE, residencies={"up": "device"}))
    found = compare(own, theirs)
    by_name = {d.change.name: d for d in found.differences}
    assert by_name.keys() == {"up", "down"}
    assert by_name["up"].change.imperative == "keep `up`"
    gain = found.largest_gain
    assert gain is not None and gain.ratio == min(d.ratio for d in found.differences)
    changed = replace(theirs.recipe, residencies={"down": "offload", "up": "device"})
    alone = price(step_of, changed)
    assert by_name["up"].ratio == alone.seconds / theirs.seconds - 1
    assert by_name["up"].peak_bytes == alone.peak_bytes - theirs.peak_bytes
    text = str(found)
    assert f"The most by one change: {gain}." in text
    assert "peak memory" in text and "offload" in text


def test_rules_meshes_and_batches_differ(priced):
    rules = (("rows", "data"), ("embed", "model"), ("mlp", None))
    other = replace(RECIPE, logical_rules=rules, mesh={"data": 4, "model": 1}, batch_size=4096)
    names = [change.name for change in RECIPE.changes_to(other)]
    assert names == ["embed", "mlp", "mesh", "batch_size"]
    changes = {change.name: change for change in RECIPE.changes_to(other)}
    assert changes["embed"].imperative == "change embed from - to model"
    assert changes["mlp"].changed.logical_rules[2] == ("mlp", None)
    assert changes["mesh"].now == "data=4"


def test_a_recipe_that_does_not_fit_is_priced():
    found = price(step_of, RECIPE, memory_budget="1MiB")
    assert not found.fits and found.peak_bytes > 2**20


def test_the_losses_are_those_of_the_step():
    step = step_of(replace(RECIPE, batch_size=16))
    params, x = jax.tree.map(lambda a: jnp.full(a.shape, 0.01), step.args)
    recipe = replace(RECIPE, residencies={"up": "remat", "down": "device"})
    with spmd.logical_axis_rules(RULES):
        plain = jax.jit(train_step)(params, x)[1]
    assert jax.jit(step.under(recipe))(params, x)[1] == plain
