"""Chooses how the axes of a mesh lie on the dimensions of a TPU topology.

Slices are divided among the first axes, which are those that communicate least by JAX's convention
(`jax.experimental.mesh_utils.create_hybrid_device_mesh`). Within a slice a placement should

1. divide as few dimensions among several axes as possible, as
   `jax.experimental.mesh_utils.create_device_mesh` would rather divide none,
2. have the least time, summed over the axes, of one collective of each kind,
3. follow the order of the dimensions.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, permutations, product
from math import gcd, prod

from kiwi.mesh.collective_kinds import KINDS
from kiwi.mesh.placement import Dimension, DimensionPart, Placement
from kiwi.mesh.torus import torus_costs

_COMPARED_BYTES = 2**24
"""Long enough for bandwidth to count more than latency, as in training steps."""

_Table = tuple[tuple[int, ...], ...]
"""For each axis the devices that it takes of each dimension."""


@lru_cache(maxsize=64)
def best_placement(shape: tuple[int, ...], dimensions: tuple[Dimension, ...]) -> Placement:
    """The best placement of a mesh with as many devices as the dimensions have together; the first
    of them are the slices."""
    of_slices = list(_divided(dimensions[0].extent, shape))
    rest = [size // slices for size, slices in zip(shape, of_slices, strict=True)]
    extents = tuple(dimension.extent for dimension in dimensions[1:])
    tables = [
        tuple((slices, *taken) for slices, taken in zip(of_slices, table, strict=True))
        for table in _tables(rest, extents)
    ]
    fewest = min(map(_shared, tables))
    found = chain.from_iterable(_placements(t) for t in tables if _shared(t) == fewest)
    # Rounded, since sums in another order differ in the last digits.
    return min(found, key=lambda p: (round(_seconds(p, dimensions), 12), _position(p)))


def _divided(count: int, sizes: Sequence[int]) -> Iterator[int]:
    """The factors of `count` that each axis takes, as much as the first can take."""
    for size in sizes:
        factor = gcd(size, count)
        count //= factor
        yield factor


def _tables(sizes: Sequence[int], extents: tuple[int, ...]) -> Iterator[_Table]:
    if not sizes:
        if prod(extents) == 1:
            yield ()
        return
    for taken in _factors(sizes[0], extents):
        left = tuple(extent // part for extent, part in zip(extents, taken, strict=True))
        yield from ((taken, *others) for others in _tables(sizes[1:], left))


def _factors(size: int, extents: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """All ways to write `size` as a product of one factor of each extent."""
    if not extents:
        if size == 1:
            yield ()
        return
    for factor in range(1, size + 1):
        if size % factor == 0 and extents[0] % factor == 0:
            yield from ((factor, *rest) for rest in _factors(size // factor, extents[1:]))


def _shared(table: _Table) -> int:
    """How often an axis takes part of a dimension beside another."""
    return sum(max(0, sum(n > 1 for n in column) - 1) for column in zip(*table, strict=True))


def _placements(table: _Table) -> Iterator[Placement]:
    """All orders of the axes within each dimension; slices in the order of the axes."""
    orders = []
    for dimension, column in enumerate(zip(*table, strict=True)):
        takers = [axis for axis, size in enumerate(column) if size > 1]
        orders.append([tuple(takers)] if dimension == 0 else list(permutations(takers)))
    for chosen in product(*orders):
        axes: list[list[DimensionPart]] = [[] for _ in table]
        for dimension, takers in enumerate(chosen):
            stride = 1
            for axis in reversed(takers):
                size = table[axis][dimension]
                axes[axis].append(DimensionPart(dimension, size, stride))
                stride *= size
        yield Placement(tuple(map(tuple, axes)))


def _seconds(placement: Placement, dimensions: Sequence[Dimension]) -> float:
    parts = [placement.parts((axis,)) for axis in range(len(placement.axes))]
    return sum(
        min(cost.seconds(_COMPARED_BYTES) for cost in torus_costs(kind, part, dimensions))
        for kind in KINDS
        for part in parts
        if part
    )


def _position(placement: Placement) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Least where axes follow each other as the dimensions do."""
    return tuple(tuple((part.dimension, -part.stride) for part in axis) for axis in placement.axes)
