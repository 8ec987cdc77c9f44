"""The placement of mesh axes on a topology, and the resulting order of devices."""

from dataclasses import dataclass
from math import prod

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh

from kiwi.mesh import DeviceMesh
from kiwi.mesh.placement import Connection, placement_of


@pytest.mark.parametrize(
    ("profile", "shape", "topology", "num_slices", "texts"),
    [
        # As many axes as dimensions: each takes its own, in order.
        ("v5e", (2, 4), None, None, ("line of 2", "line of 4")),
        ("v5e", (16, 16), None, None, ("ring of 16", "ring of 16")),
        ("v5p", (2, 2, 2), None, None, ("line of 2", "line of 2", "line of 2")),
        # Whole dimensions in another order.
        ("v5e", (4, 2), "2x4", None, ("line of 4", "line of 2")),
        ("v5e", (16, 8), "8x16", None, ("ring of 16", "line of 8")),
        # An axis over two dimensions.
        ("v5e", (8, 1), "2x4", None, ("line of 2 x line of 4", "")),
        ("v5p", (64, 8), None, None, ("ring of 8 x ring of 8", "ring of 8")),
        ("v5p", (4, 16), None, None, ("ring of 4", "ring of 4 x ring of 4")),
        # A dimension for two axes: neighbours for the one, and what is left for the other.
        ("v5e", (2, 2), "1x4", None, ("line of 2 every 2 chips", "line of 2")),
        # Slices are for the first axes.
        ("v5e", (2, 8), "2x4", 2, ("2 slices", "line of 2 x line of 4")),
        ("v5e", (8, 4), "4x4", 2, ("2 slices x line of 4", "line of 4")),
        ("v5e", (2, 256), None, None, ("2 slices", "ring of 16 x ring of 16")),
        ("v5e", (2, 2, 4), "2x2", 4, ("2 slices", "2 slices", "line of 2 x line of 2")),
        # Both devices of a chip, which are connected best.
        ("tpu7x", (4, 2), None, None, ("line of 2 x line of 2", "2 devices of a chip")),
        ("tpu7x", (2, 4), None, None, ("2 devices of a chip", "line of 2 x line of 2")),
    ],
)
def test_axes_are_laid_on_dimensions(profile, shape, topology, num_slices, texts):
    mesh = DeviceMesh.create(shape, profile, topology=topology, num_slices=num_slices)
    assert mesh.axis_texts == texts


def test_a_dimension_is_divided_where_no_other_way_is():
    mesh = DeviceMesh.create((8, 32), "v5e")
    assert mesh.placement is not None
    shared = [p for parts in mesh.placement.axes for p in parts if p.size < 16]
    assert {(part.dimension, part.size) for part in shared} in ({(1, 8), (1, 2)}, {(2, 8), (2, 2)})


def test_an_order_that_is_that_of_the_list_is_left_out():
    assert DeviceMesh.create((2, 4), "v5e").device_order is None
    assert DeviceMesh.create((2, 8), "v5e", topology="2x4", num_slices=2).device_order is None
    # x along the 4 chips of a row, y across the two rows.
    assert DeviceMesh.create((4, 2), "v5e").device_order == (0, 4, 1, 5, 2, 6, 3, 7)


def pairs_of_shape_and_topology(profile):
    extents = st.sampled_from([(2, 4), (4, 4), (2, 2), (8, 16), (1, 4), (16, 16), (4, 6)])
    if profile != "v5e":
        extents = st.sampled_from([(2, 2, 1), (2, 2, 4), (4, 4, 4), (2, 4, 6), (4, 4, 8)])
    return st.tuples(extents, st.sampled_from([1, 2, 4]), st.integers(1, 3), st.randoms())


@given(st.sampled_from(["v5e", "v5p", "tpu7x"]).flatmap(
    lambda name: st.tuples(st.just(name), pairs_of_shape_and_topology(name))
))  # fmt: skip
def test_devices_along_an_axis_differ_where_its_parts_are(case):
    name, (extents, slices, axes, random) = case
    count = prod(extents) * slices * (2 if name == "tpu7x" else 1)
    shape = random_shape(count, axes, random)
    text = "x".join(map(str, extents))
    mesh = DeviceMesh.create(shape, name, topology=text, num_slices=slices)
    order = mesh.device_order or tuple(range(count))
    assert sorted(order) == list(range(count))
    assert mesh.placement is not None
    grid = np.asarray(order).reshape(shape)
    places = np.stack(np.unravel_index(grid, [d.extent for d in mesh.dimensions]), axis=-1)
    for axis in range(len(shape)):
        lines = np.moveaxis(places, axis, 0)
        moved = (lines != lines[:1]).reshape(-1, places.shape[-1]).any(axis=0)
        taken = {part.dimension for part in mesh.placement.axes[axis]}
        assert set(np.flatnonzero(moved).tolist()) == taken
        parts = mesh.placement.parts((axis,))
        if len(parts) == 1:  # Neighbours along the axis are as far apart as its stride.
            steps = np.abs(np.diff(lines, axis=0)).sum(axis=-1)
            assert set(steps.ravel().tolist()) <= {parts[0].stride}
    found = placement_of(order, shape, mesh.dimensions)
    assert found is not None
    assert [found.parts((a,)) for a in range(len(shape))] == [
        mesh.placement.parts((a,)) for a in range(len(shape))
    ]


def random_shape(count, axes, random):
    shape = [1] * axes
    divisor = 2
    while count > 1:
        while count % divisor:
            divisor += 1
        shape[random.randrange(axes)] *= divisor
        count //= divisor
    return tuple(shape)


def test_what_matters_of_an_order_are_its_groups():
    dimensions = DeviceMesh.create((8,), "v5e").dimensions
    snake = (0, 1, 2, 3, 7, 6, 5, 4)
    assert placement_of(snake, (8,), dimensions) == DeviceMesh.create((8,), "v5e").placement
    rows = (3, 2, 1, 0, 7, 6, 5, 4)
    assert placement_of(rows, (2, 4), dimensions) == DeviceMesh.create((2, 4), "v5e").placement
    # Groups along x that lie in no column.
    assert placement_of((1, 0, 2, 3, 4, 5, 6, 7), (2, 4), dimensions) is None
    assert placement_of((0, 1, 2, 4, 3, 5, 6, 7), (2, 4), dimensions) is None


@dataclass(frozen=True)
class Chip:
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    slice_index: int | None = None


def jax_mesh_of(devices, shape):
    grid = np.empty(len(devices), dtype=object)
    grid[:] = devices
    return Mesh(grid.reshape(shape), ("x", "y", "z")[: len(shape)])


def test_the_jax_mesh_has_the_chips_where_the_placement_says():
    chips = [Chip((x, y, 0), slice_index=s) for s in (1, 0) for y in range(4) for x in range(2)]
    mesh = DeviceMesh.create((8, 2), "v5e", topology="2x4", num_slices=2)
    assert mesh.axis_texts == ("2 slices x line of 4", "line of 2")
    assert mesh.slice_shape == (4, 2)
    grid = mesh.jax_mesh(chips).devices
    for x, y in np.ndindex(8, 2):
        assert grid[x, y] == Chip((y, x % 4, 0), slice_index=x // 4)
    assert DeviceMesh.from_jax(mesh.jax_mesh(chips), "v5e") == mesh


def test_a_jax_mesh_keeps_its_order_of_devices():
    # On chips (4..5, 0..3) of a pod, x across the rows' direction: 4 along y, 2 along x.
    chips = [Chip((4 + x, y, 0)) for y in range(4) for x in range(2)]
    mesh = DeviceMesh.from_jax(jax_mesh_of(chips, (4, 2)), "v5e")
    assert mesh.topology is not None and mesh.topology.extents == (2, 4)
    assert mesh.axis_texts == ("line of 4", "line of 2")
    assert mesh.topology.ordered(chips)[mesh.device_order[1]] == chips[1]
    # An order that follows no dimensions is kept as well, and is priced by one link per axis.
    mixed = [chips[k] for k in (0, 2, 4, 6, 7, 5, 3, 1)]
    mesh = DeviceMesh.from_jax(jax_mesh_of(mixed, (2, 4)), "v5e")
    assert [mesh.topology.ordered(mixed)[k] for k in mesh.device_order] == mixed
    assert mesh.placement is None and mesh.axis_texts == ("", "")


def test_a_jax_mesh_of_other_devices_keeps_its_order_too():
    mesh = DeviceMesh.from_jax(jax_mesh_of(jax.devices(), (4, 2)), "v5e")
    assert mesh.device_order is None and mesh.placement is not None
    assert mesh.axis_texts == ("line of 2 x line of 2 every 2 chips", "line of 2")


def test_slices_of_a_jax_mesh_are_told_by_its_devices():
    chips = [Chip((x, y, 0), slice_index=s) for s in range(2) for x in range(2) for y in range(2)]
    mesh = DeviceMesh.from_jax(jax_mesh_of(chips, (2, 4)), "v5e")
    assert mesh.topology is not None and mesh.topology.slices == 2
    assert mesh.dimensions[0].connection is Connection.NETWORK
    assert mesh.axis_texts[0] == "2 slices"
