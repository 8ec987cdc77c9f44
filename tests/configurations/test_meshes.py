"""The meshes of a search: all shapes with different links, each once."""

import pytest

from kiwi.configurations.space import distinct_meshes
from kiwi.options import Options


@pytest.mark.parametrize(
    "profile, devices, shapes",
    [
        ("h100-sxm", 1, [(1,)]),
        # In one node all links are alike, in several the last axes are inside.
        ("h100-sxm", 8, [(8,), (2, 4), (2, 2, 2)]),
        ("h100-sxm", 16, [(16,), (2, 8), (4, 4), (8, 2), (2, 2, 4), (4, 2, 2)]),
        # The last axis alone is inside of a node.
        ("v100-sxm2", 8, [(8,), (2, 4), (4, 2), (2, 2, 2)]),
        ("cpu", 12, [(12,), (2, 6), (3, 4), (2, 2, 3)]),
    ],
)
def test_meshes_with_the_same_links_are_searched_once(profile, devices, shapes):
    assert list(distinct_meshes(devices, Options(profile=profile))) == shapes


def test_axes_may_be_fewer():
    shapes = distinct_meshes(16, Options(profile="h100-sxm"), most_axes=2)
    assert shapes == ((16,), (2, 8), (4, 4), (8, 2))


def test_axes_of_tpus_are_told_apart_by_the_rings_and_lines_that_they_lie_on():
    shapes = distinct_meshes(8, Options(profile="v5e"))  # 2 x 4 chips
    assert (8,) in shapes and len(shapes) == len(set(shapes))
    assert ((2, 4) in shapes) != ((4, 2) in shapes)
