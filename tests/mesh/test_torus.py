"""Collectives over the dimensions of a TPU topology, against arithmetic by hand.

Links carry 10 bytes per second in one direction and take 1 s. The network carries 1 byte per second
and takes 50 s.
"""

from dataclasses import replace

import pytest

from kiwi.mesh import KINDS, DeviceMesh, Hardware, Link, collective, hardware
from kiwi.mesh.placement import DimensionPart
from kiwi.mesh.torus import torus_costs


def tpu(name: str) -> Hardware:
    links = {"intra_link": Link(10.0, 1.0), "inter_link": Link(1.0, 50.0)}
    return replace(hardware(name), **links)


def mesh_of(shape, topology=None, num_slices=None, name="v5e"):
    return DeviceMesh.create(shape, tpu(name), topology=topology, num_slices=num_slices)


def seconds(mesh, axes, size_bytes=800):
    return {kind: collective(kind, mesh, axes, size_bytes).seconds for kind in KINDS}


def times(gather, all_to_all, permute, all_reduce=None):
    return {
        "all-gather": pytest.approx(gather),
        "reduce-scatter": pytest.approx(gather),
        "all-reduce": pytest.approx(2 * gather if all_reduce is None else all_reduce),
        "all-to-all": pytest.approx(all_to_all),
        "collective-permute": pytest.approx(permute),
    }


def test_a_line():
    # The last of 4 chips takes in 3/4 of 800 bytes over one link, after 3 links. Half of the bytes
    # of 2 chips, 800 bytes in all, cross the link in the middle.
    found = seconds(mesh_of((2, 4)), (1,))
    assert found == times(3 + 3 / 4 * 800 / 10, 3 + 800 / 10, 3 + 800 / 10)
    pair = seconds(mesh_of((2, 4)), (0,))
    assert pair == times(1 + 1 / 2 * 800 / 10, 1 + 1 / 2 * 800 / 10, 1 + 800 / 10)


def test_a_ring():
    # Twice the links, and half the way: 8 chips send 400 bytes each over 2 links.
    exchanged = 8 + 8 * 400 / 20
    assert seconds(mesh_of((16, 16)), (0,)) == times(8 + 15 / 16 * 800 / 20, exchanged, exchanged)


def test_an_axis_over_two_dimensions_has_the_links_of_both():
    # Two lines: 7/8 of 800 bytes over two links; the line of 4 decides the exchange.
    lines = seconds(mesh_of((8,), "2x4"), (0,))
    assert lines == times(4 + 7 / 8 * 800 / 20, 4 + 800 / 10, 4 + 800 / 10)
    assert lines == seconds(mesh_of((2, 4)), (0, 1))
    # Two rings: an all-reduce takes four links, and an all-gather is cheaper as an all-reduce than
    # in a ring of 256.
    reduced = 2 * (16 + 255 / 256 * 800 / 40)
    assert reduced < 128 + 255 / 256 * 800 / 20
    exchanged = 16 + 8 * 400 / 20
    assert seconds(mesh_of((256,)), (0,)) == times(reduced, exchanged, exchanged, reduced)
    # A ring of 16 and a line of 8: three links, or two of a ring of 128.
    found = seconds(mesh_of((128,), "8x16"), (0,), 80_000)
    assert found["all-reduce"] == pytest.approx(2 * (15 + 127 / 128 * 80_000 / 30))
    assert found["all-gather"] == pytest.approx(64 + 127 / 128 * 80_000 / 20)


def test_three_rings_of_cubes():
    # 4x4x4 is a cube, of which all dimensions are rings, with six links; 2x4x4 is none.
    cube = seconds(mesh_of((64,), "4x4x4", name="v5p"), (0,))
    assert cube["all-reduce"] == pytest.approx(2 * (6 + 63 / 64 * 800 / 60))
    assert cube["all-gather"] == cube["all-reduce"]
    part = seconds(mesh_of((32,), "2x4x4", name="v5p"), (0,))
    assert part["all-reduce"] == pytest.approx(2 * (7 + 31 / 32 * 800 / 30))
    assert part["all-gather"] == pytest.approx(16 + 31 / 32 * 800 / 20)
    # Where there are two chips along each dimension, they send over all three links at once.
    least = seconds(mesh_of((8,), "2x2x2", name="v5p"), (0,))
    assert least["all-gather"] == pytest.approx(3 + 7 / 8 * 800 / 30)


def test_slow_links_carry_what_goes_first_along_them():
    # Four chips of two devices each: 600 GB/s inside of a chip. Each device needs 3 of the other 7
    # shards from other chips whatever the order, and two links bring them.
    mesh = mesh_of((8,), name="tpu7x")
    assert seconds(mesh, (0,))["all-gather"] == pytest.approx(3 + 3 / 8 * 800 / 20)
    # Along lines of 2 and 4 alone, 3/8 over the line of 4 are not the bound, 7/8 over both are.
    assert 3 / 8 / 10 < 7 / 8 / 20


def test_parts_of_a_dimension():
    ring = mesh_of((16, 16)).dimensions
    # 8 neighbours of a ring are a line.
    (near,) = torus_costs("all-gather", [DimensionPart(1, 8, 1)], ring)
    assert near.seconds(800) == pytest.approx(7 + 7 / 8 * 800 / 10)
    # 2 chips 8 apart are connected both ways around, over links that 8 pairs share.
    (far,) = torus_costs("all-gather", [DimensionPart(1, 2, 8)], ring)
    assert far.seconds(800) == pytest.approx(8 + 1 / 2 * 800 / (2 * 10 / 8))
    # On a line of 8, 2 chips 4 apart have one way, which 4 pairs share.
    line = mesh_of((8, 8)).dimensions
    (far,) = torus_costs("all-to-all", [DimensionPart(1, 2, 4)], line)
    assert far.seconds(800) == pytest.approx(4 + 1 / 2 * 800 / (10 / 4))
    # Two parts with one of another axis between them divide the links once more.
    parts = [DimensionPart(1, 2, 1), DimensionPart(1, 2, 8)]
    (apart,) = torus_costs("all-to-all", parts, ring)
    assert apart.seconds_per_byte == pytest.approx(max(1 / 2 / 5, 1 / 2 / (2 * 10 / 16)))


def test_parts_beside_whole_dimensions_are_one_ring():
    # 2 neighbours of one ring of 16 and all of another.
    dimensions = mesh_of((16, 16)).dimensions
    parts = [DimensionPart(1, 2, 1), DimensionPart(2, 16, 1)]
    (found,) = torus_costs("all-reduce", parts, dimensions)
    assert found.seconds(800) == pytest.approx(2 * (16 + 31 / 32 * 800 / 20))
    # 2 chips 8 apart share links with seven other pairs, which the ring crosses too.
    parts[0] = DimensionPart(1, 2, 8)
    (found,) = torus_costs("all-gather", parts, dimensions)
    assert found.seconds(800) == pytest.approx(16 * 8 + 31 / 32 * 800 / (2 * 10 / 8))


def test_slices_are_connected_by_the_network():
    mesh = mesh_of((2, 16), "4x4", 2)
    slices = {"all-gather": 50 + 1 / 2 * 800, "all-to-all": 50 + 1 / 2 * 800}
    assert seconds(mesh, (0,)) == times(*slices.values(), 50 + 800)
    reduced, gathered = 2 * (6 + 15 / 16 * 800 / 20), 8 + 15 / 16 * 800 / 20
    grid = seconds(mesh, (1,))
    assert grid == times(gathered, 6 + 800 / 10, 6 + 800 / 10, reduced)
    # The network carries 1/32 of 800 bytes, and the slice goes on.
    network = 50 + 800 / 32
    both = times(network + gathered, 50 + 400 + 86, 50 + 800, 2 * network + reduced)
    assert seconds(mesh, (0, 1)) == both
    assert mesh.links == (tpu("v5e").inter_link, tpu("v5e").intra_link)


@pytest.mark.parametrize(
    ("shape", "topology", "num_slices", "name"),
    [((2, 4), None, None, "v5e"), ((8, 32), None, None, "v5e"), ((4, 4, 8), None, 2, "v5p")],
)
def test_one_collective_over_all_axes_is_no_slower_than_one_along_each(
    shape, topology, num_slices, name
):
    mesh = mesh_of(shape, topology, num_slices, name)
    axes = range(len(shape))
    for kind in ("all-reduce", "all-to-all"):
        parts = sum(collective(kind, mesh, (axis,), 800).seconds for axis in axes)
        assert collective(kind, mesh, axes, 800).seconds <= parts


def test_a_mesh_without_a_placement_has_one_link_per_axis():
    mesh = replace(mesh_of((16, 16)), placement=None)
    assert seconds(mesh, (0,))["all-gather"] == pytest.approx(15 + 15 / 16 * 800 / 10)
