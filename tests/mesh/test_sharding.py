"""Tensor shardings: local shapes, PartitionSpecs, enumeration, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from kiwi.errors import ShardingConflictError
from kiwi.mesh import DeviceMesh, TensorSharding, enumerate_shardings

MESH = DeviceMesh.create((2, 4), "cpu")
NAMES = MESH.axis_names

shapes = st.lists(st.integers(0, 32), max_size=4).map(tuple)
mesh_shapes = st.sampled_from([(1,), (8,), (2, 4), (1, 8), (8, 1), (2, 3), (2, 2, 2), (2, 1, 4)])


def test_dimensions_are_cut_by_the_product_of_axes():
    sharding = TensorSharding(((0, 1), (), ()))
    assert sharding.shard_count((2, 4)) == 8
    assert sharding.dim_shards((2, 4)) == (8, 1, 1)
    assert sharding.axes_used == (0, 1)


@given(shapes, mesh_shapes)
def test_enumeration_is_even_canonical_and_without_trivial_axes(shape, mesh_shape):
    mesh = DeviceMesh.create(mesh_shape, "cpu")
    found = enumerate_shardings(shape, mesh)
    assert found[0] == TensorSharding.replicated(len(shape))
    assert len(set(found)) == len(found)
    for sharding in found:
        assert sharding.divides(shape, mesh_shape)
        assert all(axes == tuple(sorted(axes)) for axes in sharding.dims)
        assert all(mesh_shape[axis] > 1 for axis in sharding.axes_used)


@pytest.mark.parametrize(
    ("shape", "count"),
    # Each of k axes lies in one of r dimensions or in none: (r + 1) ** k if all divide.
    [((), 1), ((8,), 4), ((8, 8), 9), ((8, 8, 8), 16), ((2,), 2), ((3, 8), 4), ((4,), 3)],
)
def test_enumeration_counts(shape, count):
    assert len(enumerate_shardings(shape, MESH)) == count


@given(shapes, mesh_shapes)
def test_partition_specs_round_trip(shape, mesh_shape):
    mesh = DeviceMesh.create(mesh_shape, "cpu")
    for sharding in enumerate_shardings(shape, mesh):
        spec = mesh.partition_spec(sharding)
        assert len(spec) == len(shape)
        read = TensorSharding.from_partition_spec(spec, len(shape), mesh.axis_names)
        assert read == sharding


def test_pieces_are_those_of_jax():
    jax_mesh = MESH.jax_mesh()
    for sharding in enumerate_shardings((16, 8, 3), MESH):
        array = jax.device_put(
            jnp.zeros((16, 8, 3)), NamedSharding(jax_mesh, MESH.partition_spec(sharding))
        )
        local = array.addressable_shards[0].data.shape
        shards = sharding.dim_shards(MESH.shape)
        assert tuple(np.multiply(local, shards)) == (16, 8, 3)


def test_short_and_nested_specs_are_read():
    def read(*entries):
        return TensorSharding.from_partition_spec(PartitionSpec(*entries), 3, NAMES)

    assert read() == TensorSharding.replicated(3)
    assert read("y") == TensorSharding(((1,), (), ()))
    assert read(None, ("y", "x")) == TensorSharding(((), (1, 0), ()))
    assert read((), ("x",)) == TensorSharding(((), (0,), ()))


def test_description_shows_order():
    assert MESH.describe(TensorSharding(((0,), (), (1,)))) == "[x, -, y]"
    assert MESH.describe(TensorSharding(((1, 0), ()))) == "[(y, x), -]"
    assert MESH.describe(TensorSharding(())) == "[]"


def test_trivial_axes_can_be_dropped():
    sharding = TensorSharding(((0, 1), (2,)))
    assert sharding.without_trivial_axes((1, 4, 1)) == TensorSharding(((1,), ()))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: TensorSharding(((0,), (0,))), "uses a mesh axis more than once"),
        (lambda: TensorSharding(((-1,),)), "negative mesh axis"),
        (
            lambda: TensorSharding(((2,),)).check((8,), (2, 4)),
            r"axis 2, but the mesh .*2 axes",
        ),
        (lambda: TensorSharding(((0,),)).check((8, 8), (2, 4)), r"1 dimensions.* has 2"),
        (
            lambda: TensorSharding(((), (0, 1))).check((8, 12), (2, 4)),
            r"Dimension 1 of shape \(8, 12\) cannot be cut into 8 equal",
        ),
        (lambda: MESH.describe(TensorSharding(((2,),))), "axis 2, but the mesh"),
        (
            lambda: TensorSharding.from_partition_spec(PartitionSpec("x", None), 1, NAMES),
            "2 entries, the tensor has 1",
        ),
        (
            lambda: TensorSharding.from_partition_spec(PartitionSpec("batch"), 1, NAMES),
            r"names the axis 'batch'; the mesh has \('x', 'y'\)",
        ),
        (
            lambda: TensorSharding.from_partition_spec(
                PartitionSpec(PartitionSpec.UNCONSTRAINED), 1, NAMES
            ),
            "has the entry UNCONSTRAINED",
        ),
        (
            lambda: TensorSharding.from_partition_spec(
                PartitionSpec(None, unreduced={"x"}), 1, NAMES
            ),
            "has unreduced axes",
        ),
    ],
)
def test_refusals_say_what_is_wrong(make, what):
    with pytest.raises(ShardingConflictError, match=what):
        make()


def test_divides_never_raises():
    assert not TensorSharding(((2,),)).divides((8,), (2, 4))
    assert not TensorSharding(((0,),)).divides((8, 8), (2, 4))
    assert not TensorSharding(((1,),)).divides((6,), (2, 4))
    assert TensorSharding(((1,),)).divides((0,), (2, 4))
