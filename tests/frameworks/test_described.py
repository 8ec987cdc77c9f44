"""Devices that need not be attached, as frameworks see them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kiwi.errors import InvalidArgumentError
from kiwi.frameworks.described import described_devices, devices_are
from kiwi.recipes import Recipe, Step, price


def test_devices_of_a_topology_are_seen_for_a_while():
    described = described_devices("v5e", "2x4")
    with devices_are(np.array(described).reshape(2, 4)):
        assert jax.devices() == jax.local_devices() == list(described)
        assert jax.device_count() == 8
        assert jax.devices("cpu")[0] not in described
    assert jax.devices()[0] not in described


def test_a_profile_without_topologies():
    with pytest.raises(InvalidArgumentError, match="no topologies"):
        described_devices("h100-sxm", "2x4")


def test_a_step_computes_constants_under_the_mesh_of_described_devices():
    mesh = jax.sharding.Mesh(np.array(described_devices("v5e", "2x4")), ("data",))

    def train_step(x):
        assert jax.sharding.get_abstract_mesh().axis_names == ("data",)
        with jax.ensure_compile_time_eval():
            scale = int(jnp.arange(64).max())
        return jax.lax.with_sharding_constraint(x * scale, jax.P("data"))

    x = jax.ShapeDtypeStruct((4096, 64), "float32")
    options = {"mesh": mesh, "profile": "v5e", "topology": "2x4", "in_shardings": jax.P("data")}
    step = Step(train_step, (x,), options, mesh=mesh.abstract_mesh)
    assert price(step, Recipe({"data": 8})).fits
