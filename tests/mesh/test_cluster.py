"""Clusters: recorded matrices, oracles for the assignment, files, and a measurement."""

import dataclasses
import json
from itertools import permutations
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.errors import ClusterError, InvalidMeshError
from kiwi.mesh import Cluster, DeviceMesh, assignment, best_assignment
from kiwi.profiling.cluster_probe import measure_cluster
from tests.helpers.collectives import all_reduce

RECORDED = Path(__file__).parent / "clusters"


def recorded(name):
    return Cluster.load(RECORDED / f"{name}.json")


def cluster_of(bandwidth):
    bandwidth = np.array(bandwidth, dtype=float)
    names = tuple(f"device {k}" for k in range(len(bandwidth)))
    return Cluster(names, np.full(bandwidth.shape, 1e-6), bandwidth)


def slowest(cluster, found, axis):
    """Returns the least bandwidth between any two devices of a group."""
    grid = np.array(found.order).reshape(found.shape)
    lines = np.moveaxis(grid, axis, -1).reshape(-1, found.shape[axis])
    speed = cluster.bandwidth_bytes_per_second
    return min(speed[a, b] for line in lines for a in line for b in line if a != b)


def test_pairs_and_numa_nodes_make_three_axes():
    """MAP's machine: NVLink in pairs, PCIe in a NUMA node and, slower, across."""
    cluster = recorded("pairs_and_numa_nodes")
    found = best_assignment(cluster)
    assert found.shape == (2, 2, 2) and found.is_uniform
    levels = [axis.link.bandwidth_bytes_per_second / 1e9 for axis in found.axes]
    assert levels == pytest.approx([10.5, 21, 212], rel=0.05)
    assert [slowest(cluster, found, axis) / 1e9 for axis in range(3)] == levels
    assert all(axis.spread < 1.1 for axis in found.axes)
    # The devices are numbered otherwise: taken as they come, pairs would talk over PCIe.
    assert found.order != tuple(range(8))
    assert cluster.bandwidth_bytes_per_second[0, 1] < 25e9


def test_the_right_order_makes_collectives_faster():
    cluster = recorded("pairs_and_numa_nodes")
    best = best_assignment(cluster)
    naive = dataclasses.replace(best, order=tuple(range(8)))
    as_numbered = tuple(assignment._axis_links(cluster, (2, 2, 2), naive.order))
    meshes = [
        dataclasses.replace(best, axes=axes).device_mesh("a100-sxm")
        for axes in (best.axes, as_numbered)
    ]
    fast, slow = (all_reduce(mesh, (2,), 2**26).seconds for mesh in meshes)
    assert slow > 9 * fast


@pytest.mark.parametrize(
    ("name", "shape", "uniform"),
    [
        ("one_switch", (8,), True),
        ("two_nodes", (2, 8), True),
        # A cube of doubled and single bricks: no shape is uniform, but NVLink is all that is used.
        ("hybrid_cube_mesh", (2, 4), False),
    ],
)
def test_the_best_shape(name, shape, uniform):
    found = best_assignment(recorded(name))
    assert (found.shape, found.is_uniform) == (shape, uniform)
    assert min(axis.link.bandwidth_bytes_per_second for axis in found.axes) > 20e9


def test_nodes_are_found_among_shuffled_devices():
    cluster = recorded("two_nodes")
    grid = np.array(best_assignment(cluster).order).reshape(2, 8)
    names = [{cluster.devices[device].split(" gpu")[0] for device in row} for row in grid]
    assert sorted(map(len, names)) == [1, 1] and names[0] != names[1]


def test_a_given_shape_is_kept_and_its_spread_told():
    found = best_assignment(recorded("pairs_and_numa_nodes"), (2, 4))
    assert found.shape == (2, 4)
    major, minor = found.axes
    assert major.is_uniform and not minor.is_uniform
    assert minor.spread == pytest.approx(10, rel=0.2)
    assert best_assignment(recorded("one_switch"), (1, 8)).axes[0].is_uniform


@pytest.mark.parametrize("seed", range(6))
def test_no_assignment_has_faster_slow_links(seed):
    """An oracle: all orders of six devices, compared one by one."""
    rng = np.random.default_rng(seed)
    bandwidth = rng.choice([1.0, 4.0, 16.0], (6, 6))
    cluster = cluster_of(np.minimum(bandwidth, bandwidth.T))
    found = best_assignment(cluster, (2, 3))
    best = max(
        tuple(slowest(cluster, dataclasses.replace(found, order=order), axis) for axis in (1, 0))
        for order in permutations(range(6))
    )
    assert (slowest(cluster, found, 1), slowest(cluster, found, 0)) == best


@pytest.mark.parametrize("name", ["pairs_and_numa_nodes", "one_switch"])
def test_exchanges_find_what_trying_all_finds(name, monkeypatch):
    cluster = recorded(name)
    tried = [best_assignment(cluster, shape) for shape in ((2, 4), (4, 2), (2, 2, 2))]
    monkeypatch.setattr(assignment, "_TRIED_ALL", 0)
    for best in tried:
        found = best_assignment(cluster, best.shape)
        for axis, other in zip(found.axes, best.axes, strict=True):
            assert other.link.bandwidth_bytes_per_second == pytest.approx(
                axis.link.bandwidth_bytes_per_second, rel=0.1
            )


def test_a_pair_is_as_fast_as_its_slower_direction():
    cluster = cluster_of([[0, 9, 9, 9], [9, 0, 9, 9], [1, 9, 0, 9], [9, 9, 9, 0]])
    found = best_assignment(cluster, (2, 2))
    pairs = [set(row) for row in np.array(found.order).reshape(2, 2).tolist()]
    columns = [set(row) for row in np.array(found.order).reshape(2, 2).T.tolist()]
    assert {0, 2} not in pairs + columns


# --- Planning and running on what was found --------------------------------------------------


def test_a_plan_is_priced_on_the_links_and_runs_in_the_order_found():
    found = best_assignment(recorded("pairs_and_numa_nodes"))
    mesh = found.device_mesh("a100-sxm", ("node", "socket", "pair"))
    assert [link.sustained_bytes_per_second for link in mesh.links] == [
        axis.link.bandwidth_bytes_per_second for axis in found.axes
    ]
    devices = jax.devices()
    assert [d.id for d in mesh.jax_mesh().devices.flat] == [devices[k].id for k in found.order]

    planned = kiwi.jit(lambda w, x: jnp.tanh(x @ w).sum(), mesh=mesh, verify=None)
    w, x = jnp.ones((16, 16)), jnp.ones((32, 16))
    plan = planned.plan(w, x)
    assert plan.mesh == mesh and plan.profile == "a100-sxm"
    np.testing.assert_allclose(planned(w, x), 512 * np.tanh(16.0), rtol=1e-6)


def test_the_order_of_devices_is_saved_with_a_plan(tmp_path):
    def function(x):
        return (x @ x).sum()

    mesh = best_assignment(recorded("pairs_and_numa_nodes"), (2, 4)).device_mesh("a100-sxm")
    x = jax.ShapeDtypeStruct((16, 16), "float32")
    path = tmp_path / "plan.json"
    kiwi.plan(function, x, mesh=mesh, verify=None).save(path)
    applied = kiwi.load_plan(path).apply(function)
    assert applied.plan(x).mesh == mesh


def test_an_order_must_name_each_device_once():
    mesh = DeviceMesh.create((2, 2), "cpu")
    with pytest.raises(InvalidMeshError, match="no order of 4 devices"):
        dataclasses.replace(mesh, device_order=(0, 1, 1, 2))


# --- Measuring ---------------------------------------------------------------------------------


def test_virtual_devices_can_be_measured():
    pairs = []
    devices = jax.devices()[:3]
    found = measure_cluster(
        devices, large_bytes=2**20, repetitions=3, on_pair=lambda: pairs.append(1)
    )
    assert found.devices == tuple(map(str, devices)) and len(pairs) == 3
    between = ~np.eye(3, dtype=bool)
    for matrix in (found.latency_seconds, found.bandwidth_bytes_per_second):
        assert np.all(matrix[between] > 0)
        np.testing.assert_array_equal(matrix, matrix.T)
    assert best_assignment(found, (3,)).order == (0, 1, 2)


@pytest.mark.parametrize("options", [{"devices": []}, {"large_bytes": 8}, {"repetitions": 0}])
def test_what_cannot_be_measured_is_refused(options):
    with pytest.raises(ClusterError, match="Nothing to measure"):
        measure_cluster(**{"devices": jax.devices()[:2], **options})


# --- Files ---------------------------------------------------------------------------------------


def test_a_cluster_survives_its_file(tmp_path):
    cluster = recorded("two_nodes")
    cluster.save(tmp_path / "again.json")
    again = Cluster.load(tmp_path / "again.json")
    assert again.devices == cluster.devices
    for name in ("latency_seconds", "bandwidth_bytes_per_second"):
        np.testing.assert_array_equal(getattr(again, name), getattr(cluster, name))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"version": 2}, "version 2"),
        ({"format": None}, "not a cluster of Kiwi"),
        ({"devices": None}, "has no devices"),
        ({"latency_seconds": [[0, 1], [1]]}, "not one of numbers"),
        ({"latency_seconds": [[0]]}, r"has shape \(1, 1\) for 2 devices"),
        ({"latency_seconds": [[0, -1], [1, 0]]}, "latency_seconds has entries"),
        ({"bandwidth_bytes_per_second": [[0, 0], [1, 0]]}, "bandwidth_bytes_per_second has entr"),
        ({"bandwidth_bytes_per_second": [[0, None], [1, 0]]}, "bandwidth_bytes_per_second has"),
    ],
)
def test_bad_files_are_refused(tmp_path, changes, what):
    good = {
        "format": "kiwi-cluster",
        "version": 1,
        "devices": ["a", "b"],
        "latency_seconds": [[0, 1], [1, 0]],
        "bandwidth_bytes_per_second": [[0, 1], [1, 0]],
    }
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(good | changes))
    with pytest.raises(ClusterError, match=what):
        Cluster.load(path)


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_what_is_no_description_is_refused(tmp_path, text):
    path = tmp_path / "cluster.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ClusterError, match=r"cannot be read|not a cluster of Kiwi"):
        Cluster.load(path)


def test_shapes_that_do_not_hold_the_devices_are_refused():
    with pytest.raises(InvalidMeshError, match="does not hold 8 devices"):
        best_assignment(recorded("one_switch"), (2, 3))
    with pytest.raises(ClusterError, match="at least one device"):
        cluster_of(np.zeros((0, 0)))
