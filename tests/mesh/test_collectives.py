"""The alpha-beta model, against arithmetic by hand and against its own laws."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiwi.errors import InvalidArgumentError
from kiwi.mesh import (
    KINDS,
    Collective,
    DeviceMesh,
    Link,
    collective,
    hardware,
    linear_costs,
)
from tests.helpers.collectives import (
    all_gather,
    all_reduce,
    all_to_all,
    collective_permute,
    reduce_scatter,
)

FAST = Link(100.0, 1.0)
SLOW = Link(10.0, 5.0)


def mesh_of(shape, links):
    names = ("x", "y", "z")[: len(shape)]
    return DeviceMesh(tuple(shape), names, tuple(links), hardware("cpu"))


RING = mesh_of((4,), [FAST])
GRID = mesh_of((2, 4), [SLOW, FAST])


@pytest.mark.parametrize(
    ("function", "seconds"),
    [
        # n = 4, alpha = 1 s, beta = 100 B/s, b = 800 B.
        (all_gather, 3 * 1 + 3 / 4 * 800 / 100),
        (reduce_scatter, 3 * 1 + 3 / 4 * 800 / 100),
        (all_to_all, 3 * 1 + 3 / 4 * 800 / 100),
        (all_reduce, 2 * (3 * 1 + 3 / 4 * 800 / 100)),
        (collective_permute, 1 + 800 / 100),
    ],
)
def test_one_axis(function, seconds):
    found = function(RING, (0,), 800)
    assert found == Collective(function.__name__.replace("_", "-"), (0,), 800, found.seconds)
    assert found.seconds == pytest.approx(seconds)


def test_two_axes_by_axis():
    # x: 2 devices, alpha 5, beta 10; y: 4 devices, alpha 1, beta 100; b = 8000.
    # Minor first: y carries 8000, x the 2000 that y leaves.
    by_axis = (3 * 1 + 3 / 4 * 8000 / 100) + (1 * 5 + 1 / 2 * 2000 / 10)
    # Flat: 8 devices, alpha 5; x counts with 4 * 10 B/s.
    flat = 7 * 5 + 7 / 8 * 8000 / 40
    assert by_axis < flat
    assert reduce_scatter(GRID, (0, 1), 8000).seconds == pytest.approx(by_axis)
    assert all_gather(GRID, (0, 1), 8000).seconds == pytest.approx(by_axis)
    assert all_reduce(GRID, (0, 1), 8000).seconds == pytest.approx(2 * by_axis)


def test_a_flat_ring_borrows_the_shares_of_neighbours():
    # x has a quarter of y's bandwidth, but the 4 neighbours along y lend it theirs: 4 * 2.5.
    mesh = mesh_of((2, 4), [Link(2.5, 0.0), Link(10.0, 0.0)])
    by_axis = 3 / 4 * 8000 / 10 + 1 / 2 * 2000 / 2.5
    flat = 7 / 8 * 8000 / 10
    assert flat < by_axis
    assert all_gather(mesh, (0, 1), 8000).seconds == pytest.approx(flat)
    assert all_reduce(mesh, (0, 1), 8000).seconds == pytest.approx(2 * flat)


def test_no_neighbours_lend_to_the_minor_axis():
    # By axis: 4 devices at 10 B/s carry 8000 B, then 2 at 100 B/s carry 2000 B.
    mesh = mesh_of((2, 4), [Link(100.0, 0.0), Link(10.0, 0.0)])
    by_axis = 3 / 4 * 8000 / 10 + 1 / 2 * 2000 / 100
    assert all_gather(mesh, (0, 1), 8000).seconds == pytest.approx(by_axis)
    assert by_axis < 7 / 8 * 8000 / 10


def test_an_all_to_all_by_axis_moves_everything_twice():
    even = mesh_of((2, 4), [Link(10.0, 0.0)] * 2)
    flat = 7 / 8 * 8000 / 10
    assert flat < (3 / 4 + 1 / 2) * 8000 / 10
    assert all_to_all(even, (0, 1), 8000).seconds == pytest.approx(flat)
    # Neighbours lend nothing here: a link ten times slower is so for every byte.
    uneven = mesh_of((2, 4), [Link(1.0, 0.0), Link(10.0, 0.0)])
    by_axis, flat = 3 / 4 * 8000 / 10 + 1 / 2 * 8000 / 1, 7 / 8 * 8000 / 1
    assert by_axis < flat
    assert all_to_all(uneven, (0, 1), 8000).seconds == pytest.approx(by_axis)


def test_two_ways_are_offered_for_several_axes_and_the_cheaper_taken():
    ways = linear_costs("all-to-all", GRID, (0, 1))
    assert len(ways) == 2
    for size_bytes in (0, 1, 100, 10**9):
        found = all_to_all(GRID, (0, 1), size_bytes).seconds
        assert found == min(way.seconds(size_bytes) for way in ways)
    # Short buffers: fewer steps (3 * 1 + 1 * 5); long buffers: fewer bytes over the slow link.
    assert all_to_all(GRID, (0, 1), 0).seconds == pytest.approx(8)


def test_permute_takes_one_hop_over_the_slowest_link():
    assert collective_permute(GRID, (0, 1), 800).seconds == pytest.approx(5 + 800 / 10)
    assert collective_permute(GRID, (1,), 800).seconds == pytest.approx(1 + 800 / 100)


def test_the_efficiency_of_a_link_counts():
    half = mesh_of((4,), [replace(FAST, efficiency=0.5)])
    assert all_gather(half, (0,), 800).seconds == pytest.approx(3 + 3 / 4 * 800 / 50)


@pytest.mark.parametrize("kind", KINDS)
def test_axes_of_size_one_cost_nothing(kind):
    mesh = mesh_of((1, 4), [SLOW, FAST])
    assert collective(kind, mesh, (0,), 10**9) == Collective(kind, (), 10**9, 0.0)
    assert collective(kind, mesh, (), 10**9).seconds == 0.0
    both, alone = (collective(kind, mesh, axes, 800) for axes in ((0, 1), (1,)))
    assert both == alone
    assert alone.axes == (1,)


meshes = st.builds(
    lambda sizes, links: mesh_of(sizes, links[: len(sizes)]),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.lists(st.builds(Link, st.floats(1.0, 1e6), st.floats(0.0, 10.0)), min_size=3, max_size=3),
)


@given(meshes, st.sampled_from(KINDS), st.integers(0, 10**9), st.integers(0, 10**9))
def test_more_bytes_never_take_less_time(mesh, kind, some, more):
    axes = tuple(range(len(mesh.shape)))
    seconds = [collective(kind, mesh, axes, size).seconds for size in (some, some + more)]
    assert 0 <= seconds[0] <= seconds[1]


@given(meshes, st.sampled_from(KINDS), st.integers(0, 10**9), st.permutations(range(3)))
def test_the_order_of_axes_does_not_matter(mesh, kind, size, order):
    axes = [axis for axis in order if axis < len(mesh.shape)]
    assert collective(kind, mesh, axes, size) == collective(kind, mesh, sorted(axes), size)


@given(meshes, st.integers(0, 10**9))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(mesh, size):
    axes = tuple(range(len(mesh.shape)))
    parts = reduce_scatter(mesh, axes, size).seconds + all_gather(mesh, axes, size).seconds
    assert all_reduce(mesh, axes, size).seconds == pytest.approx(parts)


@given(meshes, st.integers(0, 10**9))
def test_one_gather_is_never_slower_than_one_per_axis(mesh, size):
    """Gathering the major axis first needs the smaller buffers: the bound of all orders."""
    axes = tuple(range(len(mesh.shape)))
    part, total = size / mesh.size, 0.0
    for axis in axes:
        part *= mesh.shape[axis]
        total += linear_costs("all-gather", mesh, (axis,))[0].seconds(part)
    assert all_gather(mesh, axes, size).seconds <= total * (1 + 1e-9)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: collective("broadcast", GRID, (0,), 1), "'broadcast' is not a collective"),
        (lambda: all_gather(GRID, (2,), 1), r"Axes \(2,\) are not distinct axes of a mesh"),
        (lambda: all_gather(GRID, (-1,), 1), "are not distinct axes"),
        (lambda: all_gather(GRID, (0, 0), 1), r"Axes \(0, 0\) are not distinct"),
        (lambda: all_reduce(GRID, (0,), -1), "cannot move -1 bytes"),
    ],
)
def test_refusals_say_what_is_wrong(call, what):
    with pytest.raises(InvalidArgumentError, match=what):
        call()
