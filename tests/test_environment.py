"""The test process has eight CPU devices, and its subprocesses have the number that they ask
for."""

import os
import subprocess
import sys

import jax
import pytest

COUNT_DEVICES = "import jax; print(jax.device_count(), jax.default_backend())"


def test_eight_virtual_devices():
    assert jax.device_count() == 8
    assert jax.default_backend() == "cpu"


@pytest.mark.parametrize(
    ("variables", "devices"), [({}, 1), ({"JAX_NUM_CPU_DEVICES": "4"}, 4)], ids=["own", "asked"]
)
def test_subprocess_chooses_its_own_devices(variables: dict[str, str], devices: int):
    output = subprocess.run(
        [sys.executable, "-c", COUNT_DEVICES],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output.split() == [str(devices), "cpu"]


def test_mesh_takes_constraints(make_mesh):
    mesh = make_mesh(2, 4)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", "y"))
    constrain = jax.jit(lambda x: jax.lax.with_sharding_constraint(x + 1, sharding))
    assert constrain(jax.numpy.zeros((4, 8))).sharding.is_equivalent_to(sharding, 2)
