"""Meshes of one and of three axes, and dimensions that no axis divides."""

import jax
import numpy as np
import pytest

import kiwi
from examples import mlp
from kiwi.errors import ShardingConflictError


def losses(step, config, steps=2):
    state, found = mlp.make_state(config), []
    batch = mlp.make_batch(config)
    for _ in range(steps):
        state, metrics = step(state, batch)
        found.append(float(metrics["loss"]))
    return found


@pytest.mark.parametrize("mesh_shape", [(8,), (2, 2, 2)])
def test_meshes_of_one_and_three_axes_train_alike(mesh_shape):
    config = mlp.MlpConfig(layers=1, width=64, batch=256)
    step = mlp.make_train_step(config)
    arguments = mlp.abstract_state(config), mlp.abstract_batch(config)
    whole = kiwi.plan(step, *arguments, mesh_shape=(1,), verify=None)
    # Less than one device needs, so that all have to share.
    budget = int(0.4 * whole.peak_bytes)
    options = {"memory_budget": budget, "gap": 0.3}
    planned = kiwi.jit(step, mesh_shape=mesh_shape, donate_argnums=0, **options)
    plan = planned.plan(*arguments)
    assert plan.fits
    np.testing.assert_allclose(losses(planned, config), losses(jax.jit(step), config), rtol=1e-5)
    used = plan.execution.layouts.values()
    axes = {axis for layout in used for axis in layout.axes_used}
    assert len(axes) >= min(2, len(mesh_shape))


def test_uneven_dimensions_are_replicated_with_a_note():
    config = mlp.MlpConfig(layers=1, width=15, batch=9)
    step = mlp.make_train_step(config)
    planned = kiwi.jit(step, mesh_shape=(2, 4), verify=None)
    plan = planned.plan(mlp.make_state(config), mlp.make_batch(config))
    assert any("replicated on every device" in note.text for note in plan.notes)
    np.testing.assert_allclose(losses(planned, config), losses(jax.jit(step), config), rtol=1e-5)


@pytest.mark.parametrize(("vocabulary", "is_noted"), [(1001, True), (1004, False)])
def test_a_long_dimension_that_no_axis_divides_is_noted(vocabulary, is_noted):
    def loss(embedding, tokens):
        x = embedding["token"][tokens]
        return (x @ embedding["token"].T + embedding["bias"]).mean()

    embedding = {
        "token": jax.ShapeDtypeStruct((vocabulary, 16), "bfloat16"),
        "bias": jax.ShapeDtypeStruct((1, vocabulary), "float32"),
    }
    tokens = jax.ShapeDtypeStruct((8, 1001), "int32")
    plan = kiwi.plan(loss, embedding, tokens, mesh_shape=(2, 4), verify=None)
    noted = [note for note in plan.notes if "divides the" in note.text]
    assert len(noted) == is_noted
    if is_noted:
        assert "1001 of embedding['token']: nothing" in noted[0].text
        assert "With 1008, 0.70%" in noted[0].text


def test_an_uneven_sharding_of_an_argument_is_refused_as_by_jax():
    config = mlp.MlpConfig(layers=1, width=16, batch=9)
    spec = jax.sharding.PartitionSpec("x")
    planned = kiwi.jit(
        mlp.make_train_step(config), mesh_shape=(2,), in_shardings=(None, spec), verify=None
    )
    with pytest.raises(ShardingConflictError, match="cannot be cut into 2 equal pieces"):
        planned.plan(mlp.make_state(config), mlp.make_batch(config))
