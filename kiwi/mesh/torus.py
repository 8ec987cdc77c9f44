"""The time of a collective over the dimensions of a TPU topology, by the alpha-beta model.

A collective runs over parts of dimensions (see `kiwi.mesh.placement`). Every device takes part in a
group of its own at the same time, so that links are shared: a part whose chips are s apart has s
groups on the same links, each of which gets a share of 1 / s.

b is the larger buffer of one device (see `kiwi.mesh.collectives`), n the devices of a part, N those
of all parts together, beta what one link carries one way.

- **All-reduce** over whole dimensions. As many copies of a reduce-scatter and an all-gather run at
  once as there are dimensions, each on a part of the buffer and in another order of the dimensions,
  so that all links work all the time. A device takes in over both links of a ring and, at the end
  of a line, over one. Parts S of some dimensions carry least where they go first, (prod n - 1) / N
  of b, and have the sum of their links' rates; the time is twice the largest such quotient over
  all S.
- **All-gather, reduce-scatter.** Over several dimensions in one ring through all chips, which has
  two links of a chip: (N - 1) / N b / (2 beta). Or as an all-reduce, if that is cheaper, as it is
  around three rings. Where no dimension has more than 2 chips, over all links at once.
- **Parts of dimensions** beside others: in one ring through all chips, an all-reduce too.
- **All-to-all.** Each of two halves of a line sends the other half of its data: floor(n^2 / 4) / n
  of b over the link between them; around a ring there are two such links. The slowest dimension
  decides.
- **Collective-permute.** Of an unknown permutation the links carry as much as of an all-to-all, but
  no less than b.
- **Slices.** Each device has its share of the network, which is not blocked. XLA:TPU sends what is
  smallest over it: an all-reduce is a reduce-scatter in each slice, an exchange of the shards and
  an all-gather in each slice. The network thus carries (n - 1) / N of b in n - 1 steps, before or
  after a slice does its part; of an all-to-all (n - 1) / n of b.

Latency: one alpha for each link on the way of the furthest two devices, or half around a ring.

The algorithms are those that libtpu 0.0.42 names in compiled programs
(`tests/xla/tpu/test_collective_algorithms.py`). Bounds: Chan, Heimlich, Purkayastha, van de Geijn,
*Collective communication: theory, practice, and experience*, 2007; Austin et al., *How to Scale
Your Model*, 2025, part 3.

**The best placement** of a mesh's axes on the dimensions of a topology (compare
`jax.experimental.mesh_utils`): slices are divided among the first axes, which communicate least by
JAX's convention; within a slice it divides as few dimensions among several axes as possible, then
has the least time of one collective of each kind, summed over the axes, then follows the order of
the dimensions.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, permutations, product
from math import gcd, prod

from kiwi.mesh.collective_kinds import ALL_REDUCE, ALL_TO_ALL, COLLECTIVE_PERMUTE, KINDS
from kiwi.mesh.placement import Connection, Dimension, DimensionPart, Placement
from kiwi.mesh.profile_entries import LinearCost

_COMPARED_BYTES = 2**24
"""A size at which bandwidth counts more than latency, as in training steps."""
_Table = tuple[tuple[int, ...], ...]
"""For each axis the devices that it takes of each dimension."""


@dataclass(frozen=True)
class _Row:
    """One group of a part: `size` devices in a row with links between neighbours.

    - `bytes_per_second`: of a link, one way, as far as this group has it.
    - `latency_seconds`: between neighbours.
    """

    size: int
    is_ring: bool
    bytes_per_second: float
    latency_seconds: float

    @property
    def inflow_bytes_per_second(self) -> float:
        """The rate at which its last device can receive."""
        return self.bytes_per_second * (2 if self.is_ring else 1)

    @property
    def longest_way_seconds(self) -> float:
        """The latency between its furthest devices."""
        return self.latency_seconds * (self.size // 2 if self.is_ring else self.size - 1)

    @property
    def exchange_seconds_per_byte(self) -> float:
        """The seconds per byte of an all-to-all."""
        return self.size**2 // 4 / self.size / self.inflow_bytes_per_second

    @property
    def permute_seconds_per_byte(self) -> float:
        """The seconds per byte of a collective-permute."""
        return max(self.exchange_seconds_per_byte, 1 / self.bytes_per_second)


def torus_costs(
    kind: str, parts: Sequence[DimensionPart], dimensions: Sequence[Dimension]
) -> tuple[LinearCost, ...]:
    """The cost of each way to run a collective `kind` over parts, as `Placement.parts` yields them.
    The cheapest way is used."""
    between = [p for p in parts if _connection(p, dimensions) is Connection.NETWORK]
    within = [p for p in parts if _connection(p, dimensions) is not Connection.NETWORK]
    ways = _within(kind, within, dimensions) if within else [LinearCost(0.0, 0.0)]
    if not between:
        return tuple(ways)
    slices, devices = prod(p.size for p in between), prod(p.size for p in within)
    link = dimensions[between[0].dimension].link
    per_byte = 1 / link.sustained_bytes_per_second
    if kind == COLLECTIVE_PERMUTE:
        return (LinearCost(link.latency_seconds, per_byte),)
    share = (slices - 1) / slices / (1 if kind == ALL_TO_ALL else devices)
    network = LinearCost((slices - 1) * link.latency_seconds, share * per_byte)
    network = network + network if kind == ALL_REDUCE else network
    return tuple(network + way for way in ways)


def _connection(part: DimensionPart, dimensions: Sequence[Dimension]) -> Connection:
    return dimensions[part.dimension].connection


def _rows(parts: Sequence[DimensionPart], dimensions: Sequence[Dimension]) -> Iterable[_Row]:
    in_dimension = Counter(part.dimension for part in parts)
    for part in parts:
        dimension = dimensions[part.dimension]
        # Parts of one dimension that do not continue each other divide its links.
        link = dimension.link.shared_by(part.stride * in_dimension[part.dimension])
        rate, latency = link.sustained_bytes_per_second, part.stride * link.latency_seconds
        yield _Row(part.size, part.is_ring(dimension), rate, latency)


def _within(
    kind: str, parts: Sequence[DimensionPart], dimensions: Sequence[Dimension]
) -> list[LinearCost]:
    """The ways of a collective that stays in its slice."""
    rows = list(_rows(parts, dimensions))
    latency = sum(row.longest_way_seconds for row in rows)
    if kind == ALL_TO_ALL:
        return [LinearCost(latency, max(row.exchange_seconds_per_byte for row in rows))]
    if kind == COLLECTIVE_PERMUTE:
        return [LinearCost(latency, max(row.permute_seconds_per_byte for row in rows))]
    in_chips = [_connection(part, dimensions) is Connection.CHIP for part in parts]
    chips = [row for row, inside in zip(rows, in_chips, strict=True) if not inside]
    inside_chips = [row for row, inside in zip(rows, in_chips, strict=True) if inside]
    ring = _gather([*_one_ring(chips), *inside_chips])
    all_links = _gather(rows)
    is_whole = all(part.size == dimensions[part.dimension].extent for part in parts)
    if kind == ALL_REDUCE:
        return [all_links + all_links] if is_whole else [ring + ring]
    if len(chips) < 2 or not is_whole:
        return [ring]
    return [ring, all_links if max(r.size for r in rows) == 2 else all_links + all_links]


def _one_ring(rows: Sequence[_Row]) -> list[_Row]:
    """One ring through the chips of several rows. A single row stays as it is."""
    if len(rows) < 2:
        return list(rows)
    slowest = min(row.bytes_per_second for row in rows)
    latency = max(row.latency_seconds for row in rows)
    return [_Row(prod(row.size for row in rows), True, slowest, latency)]


def _gather(rows: Sequence[_Row]) -> LinearCost:
    """An all-gather or reduce-scatter with all links of the rows at once."""
    total = prod(row.size for row in rows)
    some = chain.from_iterable(combinations(rows, k) for k in range(1, len(rows) + 1))
    seconds_per_byte = max(
        (prod(row.size for row in first) - 1)
        / total
        / sum(r.inflow_bytes_per_second for r in first)
        for first in some
    )
    return LinearCost(sum(row.longest_way_seconds for row in rows), seconds_per_byte)


@lru_cache(maxsize=64)
def best_placement(shape: tuple[int, ...], dimensions: tuple[Dimension, ...]) -> Placement:
    """The best placement of a mesh with as many devices as the dimensions have together. The first
    dimension is the slices."""
    of_slices = list(_divided(dimensions[0].extent, shape))
    rest = [size // slices for size, slices in zip(shape, of_slices, strict=True)]
    extents = tuple(dimension.extent for dimension in dimensions[1:])
    tables = [
        tuple((slices, *taken) for slices, taken in zip(of_slices, table, strict=True))
        for table in _tables(rest, extents)
    ]
    fewest = min(map(_shared, tables))
    placements = chain.from_iterable(_placements(t) for t in tables if _shared(t) == fewest)
    # Rounded, since sums in another order differ in the last digits.
    return min(placements, key=lambda p: (round(_seconds(p, dimensions), 12), _position(p)))


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
