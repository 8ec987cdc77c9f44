"""All even shardings of a tensor over a mesh."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod

from kiwi.mesh.device_mesh import DeviceMesh
from kiwi.mesh.sharding import TensorSharding

DivisiblePattern = tuple[tuple[tuple[int, ...], ...], ...]
"""For each tensor dimension, the sets of mesh axes (each increasing) that cut it evenly."""


def divisible_pattern(shape: Sequence[int], mesh: DeviceMesh) -> DivisiblePattern:
    """Which sets of mesh axes cut which dimension evenly.

    All that decides which shardings of a tensor exist: two shapes with the same pattern have
    the same shardings. Axes of size 1 are left out.
    """
    axes = mesh.nontrivial_axes
    subsets = [s for count in range(len(axes) + 1) for s in combinations(axes, count)]
    return tuple(
        tuple(s for s in subsets if size % prod(mesh.shape[axis] for axis in s) == 0)
        for size in shape
    )


def enumerate_shardings(shape: Sequence[int], mesh: DeviceMesh) -> list[TensorSharding]:
    """All even shardings of a tensor of `shape`, in a fixed order, replicated first.

    Where several mesh axes split one dimension they come in increasing order only. Axes of
    size 1 are never used, because they change nothing.
    """
    return canonical_shardings(divisible_pattern(shape, mesh))


def canonical_shardings(pattern: DivisiblePattern) -> list[TensorSharding]:
    """The shardings of `enumerate_shardings`, from the pattern of the shape."""
    found = sorted(_choices(pattern), key=lambda dims: (sum(map(len, dims)), dims))
    return [TensorSharding(dims) for dims in found]


def _choices(pattern: DivisiblePattern) -> Iterator[tuple[tuple[int, ...], ...]]:
    """One set of axes per dimension, no axis in two of them."""
    if not pattern:
        yield ()
        return
    for rest in _choices(pattern[1:]):
        taken = {axis for axes in rest for axis in axes}
        for axes in pattern[0]:
            if not taken.intersection(axes):
                yield (axes, *rest)
