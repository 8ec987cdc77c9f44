"""Grids of chips: the grid that a mesh takes, and grids read from texts and devices."""

from types import SimpleNamespace

import pytest

from kiwi.errors import InvalidMeshError
from kiwi.mesh import DeviceMesh, hardware
from kiwi.mesh.topology import Topology


@pytest.mark.parametrize(
    ("profile", "devices", "expected"),
    [
        ("v5e", 1, "1x1"),
        ("v5e", 8, "2x4"),
        ("v5e", 256, "16x16"),
        ("v5p", 4, "2x2x1"),
        ("v5p", 512, "8x8x8"),
        ("v4", 8, "2x2x2"),
        ("tpu7x", 8, "2x2x1"),
    ],
)
def test_the_most_compact_grid_is_taken(profile: str, devices: int, expected: str):
    wiring = hardware(profile).interconnect
    assert wiring is not None
    found = Topology.of_devices(devices, wiring)
    assert str(found) == expected and found.device_count(wiring) == devices


def test_texts_are_read_with_and_without_a_generation():
    assert Topology.parse("4x4x8") == Topology.parse("v5p:4x4x8") == Topology((4, 4, 8))
    for text in ("4x", "v5e", "0x4"):
        with pytest.raises(InvalidMeshError, match="no topology"):
            Topology.parse(text)


def test_a_topology_has_the_devices_of_the_mesh():
    mesh = DeviceMesh.create((2, 8), "v5e", topology="4x4")
    assert mesh.topology == Topology((4, 4))
    assert DeviceMesh.create((2, 4), "h100-sxm").topology is None
    with pytest.raises(InvalidMeshError, match="has 8 devices"):
        DeviceMesh.create((2, 4), "v5e", topology="4x4")
    with pytest.raises(InvalidMeshError, match="no TPU"):
        DeviceMesh.create((2, 4), "h100-sxm", topology="2x4")
    with pytest.raises(InvalidMeshError, match="whole chips"):
        DeviceMesh.create((3,), "tpu7x")


def test_slices_are_as_few_as_hold_the_devices():
    assert DeviceMesh.create((2, 256), "v5e").topology == Topology((16, 16), 2)
    assert DeviceMesh.create((4, 256), "v5p").topology == Topology((8, 8, 16))
    assert DeviceMesh.create((2, 4), "v5e", num_slices=2).topology == Topology((2, 2), 2)
    given = DeviceMesh.create((2, 8), "v5e", topology="2x4", num_slices=2)
    assert given.topology == Topology((2, 4), 2)
    with pytest.raises(InvalidMeshError, match="topology='2x4' has 8") as caught:
        DeviceMesh.create((2, 8), "v5e", topology="2x4")
    assert "num_slices=2" in caught.value.suggestion
    for count in (0, 3):
        with pytest.raises(InvalidMeshError, match=f"num_slices={count} does not divide"):
            DeviceMesh.create((2, 4), "v5e", num_slices=count)
    with pytest.raises(InvalidMeshError, match="no TPU"):
        DeviceMesh.create((2, 4), "h100-sxm", num_slices=2)


@pytest.mark.parametrize(
    ("profile", "extents", "rings"),
    [
        ("v5e", (16, 16), (True, True)),
        ("v6e", (8, 16), (False, True)),
        ("v5e", (4, 8), (False, False)),
        ("v5p", (4, 4, 8), (True, True, True)),
        ("v4", (2, 4, 4), (False, False, False)),
        ("tpu7x", (2, 2, 1), (False, False, False)),
    ],
)
def test_dimensions_are_rings_where_whole_pods_or_cubes_are(profile, extents, rings):
    wiring = hardware(profile).interconnect
    assert wiring is not None and wiring.rings(extents) == rings


def test_devices_are_ordered_by_coordinates_whatever_hosts_they_are_on():
    places = [(x, y, 0) for y in range(4) for x in range(2)]
    devices = [SimpleNamespace(coords=p, core_on_chip=0, slice_index=None) for p in places]
    assert [d.coords for d in Topology((2, 4)).ordered(devices)] == sorted(places)
    without_coordinates = ["b", "a"]
    assert Topology((2, 4)).ordered(without_coordinates) == without_coordinates
