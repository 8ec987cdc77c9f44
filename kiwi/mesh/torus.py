"""The time of a collective over the dimensions of a TPU topology, by the alpha-beta model.

A collective runs over parts of dimensions (see `kiwi.mesh.placement`). Each device belongs to one
group, and all groups run at the same time and share links. If the chips of a part are s apart, s
groups use the same links, and each gets a share of 1 / s.

b is the larger buffer of one device (see `kiwi.mesh.collectives`), n the number of devices of a
part, N the number of devices of all parts together, and beta the rate of one link, one way.

- **All-reduce** over whole dimensions. The buffer is cut into as many parts as there are
  dimensions. Each part has its own reduce-scatter and all-gather, which run through the dimensions
  in another order, so that all links are always busy. A device receives over both links of a ring,
  or over one link at the end of a line. A set S of dimensions receives at least (prod n - 1) / N of
  b at the sum of the rates of its links; it receives no more if its dimensions come first. The time
  is twice the largest quotient of the two over all S.
- **All-gather, reduce-scatter.** One ring runs through all chips of several dimensions, and uses
  two links of a chip: (N - 1) / N b / (2 beta). The algorithm of the all-reduce is used if it is
  cheaper, as around three rings. If no dimension has more than 2 chips, all links are used at the
  same time.
- **Parts of dimensions.** If a part does not cover its dimension, one ring runs through all chips,
  for an all-reduce, too.
- **All-to-all.** Each half of a line sends half of its data to the other half: floor(n^2 / 4) / n
  of b over the link between them. Around a ring there are two such links. The slowest dimension
  determines the time.
- **Collective-permute.** The permutation is unknown. The links are assumed to carry as many bytes
  as in an all-to-all, but at least b.
- **Slices.** Each device has its share of the network, which is free of contention. XLA:TPU sends
  the smallest buffers over the network: an all-reduce is a reduce-scatter in each slice, an
  exchange of the shards, and an all-gather in each slice. Let n be the number of slices. The
  network carries (n - 1) / N of b in n - 1 steps, before or after the part within a slice. In an
  all-to-all it carries (n - 1) / n of b.

The latency is one alpha for each link between the two most distant devices, on the shorter way
around a ring.

libtpu 0.0.42 names these algorithms in compiled programs
(`tests/xla/tpu/test_collective_algorithms.py`). Bounds: Chan, Heimlich, Purkayastha, van de Geijn,
*Collective communication: theory, practice, and experience*, 2007; Austin et al., *How to Scale
Your Model*, 2025, part 3.

**The best placement** of a mesh's axes on the dimensions of a topology (compare
`jax.experimental.mesh_utils`) divides the slices among the first axes, which communicate least by
JAX's convention. Within a slice it divides as few dimensions among several axes as possible. Among
equal placements it has the least time of one collective of each kind, summed over the axes. Among
placements with equal times it follows the order of the dimensions.
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
"""The size of the collectives by which placements are compared. Bandwidth counts more than latency
at this size, as in training steps."""
_Table = tuple[tuple[int, ...], ...]
"""For each axis, the number of devices that it takes of each dimension."""


@dataclass(frozen=True)
class _Row:
    """One group of a part: `size` devices in a row with links between neighbours.

    - `is_ring`: whether the last device has a link to the first.
    - `bytes_per_second`: the group's share of the rate of a link, one way.
    - `latency_seconds`: the latency between neighbours.
    """

    size: int
    is_ring: bool
    bytes_per_second: float
    latency_seconds: float

    @property
    def inflow_bytes_per_second(self) -> float:
        """The rate at which the last device of the row can receive."""
        return self.bytes_per_second * (2 if self.is_ring else 1)

    @property
    def longest_way_seconds(self) -> float:
        """The latency between the two most distant devices."""
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
    """Returns the cost of each way to run a collective `kind` over parts. The cheapest way counts.

    - `parts`: as `Placement.parts` returns them.
    - `dimensions`: all dimensions of the topology.
    """
    between = [part for part in parts if _connection(part, dimensions) is Connection.NETWORK]
    within = [part for part in parts if _connection(part, dimensions) is not Connection.NETWORK]
    ways = _within(kind, within, dimensions) if within else [LinearCost(0.0, 0.0)]
    if not between:
        return tuple(ways)
    slices, devices = prod(part.size for part in between), prod(part.size for part in within)
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
    """Returns the costs of the ways to run a collective within a slice."""
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
    return [
        ring,
        all_links if max(any_row.size for any_row in rows) == 2 else all_links + all_links,
    ]


def _one_ring(rows: Sequence[_Row]) -> list[_Row]:
    """Returns one ring through the chips of several rows. A single row stays unchanged."""
    if len(rows) < 2:
        return list(rows)
    slowest = min(row.bytes_per_second for row in rows)
    latency = max(row.latency_seconds for row in rows)
    return [_Row(prod(row.size for row in rows), True, slowest, latency)]


def _gather(rows: Sequence[_Row]) -> LinearCost:
    """Returns the cost of an all-gather or reduce-scatter that uses all links of the rows at the
    same time."""
    total = prod(row.size for row in rows)
    subsets = chain.from_iterable(combinations(rows, k) for k in range(1, len(rows) + 1))
    seconds_per_byte = max(
        (prod(row.size for row in first) - 1)
        / total
        / sum(first_row.inflow_bytes_per_second for first_row in first)
        for first in subsets
    )
    return LinearCost(sum(row.longest_way_seconds for row in rows), seconds_per_byte)


@lru_cache(maxsize=64)
def best_placement(shape: tuple[int, ...], dimensions: tuple[Dimension, ...]) -> Placement:
    """Returns the best placement of a mesh of `shape`, see the module's text. The mesh has as many
    devices as the dimensions together. The first dimension counts the slices."""
    of_slices = list(_divided(dimensions[0].extent, shape))
    slice_shape = [size // slices for size, slices in zip(shape, of_slices, strict=True)]
    extents = tuple(dimension.extent for dimension in dimensions[1:])
    tables = [
        tuple((slices, *taken) for slices, taken in zip(of_slices, table, strict=True))
        for table in _tables(slice_shape, extents)
    ]
    fewest = min(map(_shared, tables))
    placements = chain.from_iterable(
        _placements(candidate) for candidate in tables if _shared(candidate) == fewest
    )
    # Sums in another order differ in the last digits.
    return min(
        placements,
        key=lambda placement: (round(_seconds(placement, dimensions), 12), _position(placement)),
    )


def _divided(count: int, sizes: Sequence[int]) -> Iterator[int]:
    """Yields the factor of `count` that each axis takes. The first axes take as much as they
    can."""
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
        left_extents = tuple(extent // part for extent, part in zip(extents, taken, strict=True))
        yield from ((taken, *others) for others in _tables(sizes[1:], left_extents))


def _factors(size: int, extents: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yields all ways to write `size` as a product of one factor of each extent."""
    if not extents:
        if size == 1:
            yield ()
        return
    for factor in range(1, size + 1):
        if size % factor == 0 and extents[0] % factor == 0:
            yield from (
                (factor, *later_factors) for later_factors in _factors(size // factor, extents[1:])
            )


def _shared(table: _Table) -> int:
    """Returns the sum over the dimensions of the number of axes that share it, less one."""
    return sum(max(0, sum(n > 1 for n in column) - 1) for column in zip(*table, strict=True))


def _placements(table: _Table) -> Iterator[Placement]:
    """Yields the placements with all orders of the axes within each dimension. Slices keep the
    order of the axes."""
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
    """Returns a key that is least if the axes follow each other as the dimensions do."""
    return tuple(tuple((part.dimension, -part.stride) for part in axis) for axis in placement.axes)
