"""Device meshes: the link of each axis, jax meshes, refusals."""

import jax
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from kiwi.errors import InvalidMeshError, NotEnoughDevicesError, UnknownProfileError
from kiwi.mesh import DeviceMesh, TensorSharding, hardware


@pytest.mark.parametrize(
    ("name", "shape", "links"),
    [
        # Without a node size the last axis, and only that, lies inside a node.
        ("v100-sxm2", (8,), "n"),
        ("v100-sxm2", (2, 4), "xn"),
        ("v100-sxm2", (1, 8), "xn"),
        ("v100-sxm2", (8, 1), "xn"),
        ("v100-sxm2", (2, 2, 2), "xxn"),
        # Nodes of eight: the minor-most axes as long as their product is at most eight.
        ("h100-sxm", (8,), "n"),
        ("h100-sxm", (16,), "x"),
        ("h100-sxm", (2, 4), "nn"),
        ("h100-sxm", (2, 8), "xn"),
        ("h100-sxm", (8, 2), "xn"),
        ("h100-sxm", (2, 2, 2), "nnn"),
        ("h100-sxm", (4, 4, 2), "xnn"),
        ("h100-sxm", (2, 4, 4), "xxn"),
        ("h100-sxm", (1, 16), "xx"),
        ("cpu", (16, 16), "nn"),
    ],
)
def test_links_follow_from_node_size(name, shape, links):
    mesh = DeviceMesh.create(shape, name)
    intra = mesh.hardware.intra_link
    assert "".join("n" if link == intra else "x" for link in mesh.links) == links


def test_a_port_shared_by_the_node_is_divided():
    port = hardware("v100-sxm2").inter_link
    assert DeviceMesh.create((2, 4), "v100-sxm2").links[0] == port.shared_by(4)
    assert DeviceMesh.create((8, 1), "v100-sxm2").links[0] == port
    # One port per device: nothing to divide.
    assert DeviceMesh.create((2, 8), "h100-sxm").links[0] == hardware("h100-sxm").inter_link


def test_names_and_sizes():
    mesh = DeviceMesh.create([2, 1, 4], "cpu")
    assert mesh.shape == (2, 1, 4)
    assert mesh.axis_names == ("x", "y", "z")
    assert DeviceMesh.create((8,), "cpu").axis_names == ("x",)
    assert mesh.size == 8
    assert mesh.nontrivial_axes == (0, 2)
    named = DeviceMesh.create((2, 4), "cpu", ["data", "model"])
    assert named.partition_spec(TensorSharding(((1,), ()))) == PartitionSpec("model", None)


def test_hardware_by_name_or_entry():
    assert DeviceMesh.create((2,), "cpu") == DeviceMesh.create((2,), hardware("cpu"))
    with pytest.raises(UnknownProfileError, match="tpu"):
        DeviceMesh.create((2,), "tpu")


def test_jax_meshes_have_auto_axes_and_go_back():
    mesh = DeviceMesh.create((2, 4), "cpu", ("data", "model"))
    for jax_mesh in (mesh.abstract_mesh(), mesh.jax_mesh()):
        assert jax_mesh.axis_types == (AxisType.Auto,) * 2
        assert jax_mesh.axis_names == ("data", "model")
        assert DeviceMesh.from_jax(jax_mesh, "cpu") == mesh
    explicit = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    assert DeviceMesh.from_jax(explicit, "cpu") == mesh


def test_the_jax_mesh_takes_the_first_devices_in_order():
    devices = jax.devices()
    assert list(DeviceMesh.create((2, 2), "cpu").jax_mesh().devices.flat) == devices[:4]
    turned = DeviceMesh.create((2,), "cpu").jax_mesh(devices[::-1])
    assert list(turned.devices.flat) == devices[:-3:-1]


def test_arrays_can_be_placed_on_the_jax_mesh():
    mesh = DeviceMesh.create((2, 4), "cpu")
    spec = mesh.partition_spec(TensorSharding(((1,), (0,))))
    array = jax.device_put(
        jax.numpy.arange(64.0).reshape(8, 8), NamedSharding(mesh.jax_mesh(), spec)
    )
    assert array.addressable_shards[0].data.shape == (2, 4)


def test_too_few_devices_tell_how_to_get_virtual_ones():
    with pytest.raises(NotEnoughDevicesError, match="needs 32 devices; 8 given") as caught:
        DeviceMesh.create((4, 8), "cpu").jax_mesh()
    assert 'jax.config.update("jax_num_cpu_devices", 32)' in caught.value.suggestion


@pytest.mark.parametrize(
    ("shape", "names", "what"),
    [
        ((), None, r"Mesh shape \(\) is not a sequence of positive integers"),
        ((2, 0), None, r"Mesh shape \(2, 0\) is not"),
        ((2.0, 4), None, "is not a sequence of positive integers"),
        ((True, 4), None, "is not a sequence of positive integers"),
        (8, None, "Mesh shape 8 is not"),
        ("24", None, "Mesh shape '24' is not"),
        ((2, 2, 2, 2), ("a", "b", "c", "d"), "more than 3 axes larger than 1"),
        ((1, 2, 2, 2), None, "no default names for the 4 axes"),
        ((2, 4), ("x",), "1 names for 2 axes"),
        ((2, 4), ("x", "x"), r"\('x', 'x'\) are not distinct"),
        ((2, 4), ("x", ""), "not all non-empty strings"),
        ((2, 4), ("x", 1), "not all non-empty strings"),
        ((8,), "data", r"names 'data' are not a sequence of names[^$]*axis_names=\('data',\)"),
        ((8,), 3, "names 3 are not a sequence of names"),
    ],
)
def test_refusals_say_what_is_wrong(shape, names, what):
    with pytest.raises(InvalidMeshError, match=what):
        DeviceMesh.create(shape, "cpu", names)


@pytest.mark.parametrize(
    ("shape", "written"), [(8, "(8,)"), ("2,4", "(2, 4)"), ("2x4", "(2, 4)"), (-8, "(8,)")]
)
def test_a_shape_that_is_no_sequence_is_written_as_one(shape, written: str):
    with pytest.raises(InvalidMeshError) as caught:
        DeviceMesh.create(shape, "cpu")
    assert f"mesh_shape={written}" in caught.value.suggestion


def test_one_link_per_axis():
    cpu = hardware("cpu")
    with pytest.raises(InvalidMeshError, match="has 1 links"):
        DeviceMesh((2, 4), ("x", "y"), (cpu.intra_link,), cpu)


def test_a_fourth_axis_of_size_one_is_allowed():
    mesh = DeviceMesh.create((1, 2, 2, 2), "cpu", ("a", "b", "c", "d"))
    assert mesh.nontrivial_axes == (1, 2, 3)
