"""The time of a collective over the dimensions of a TPU topology, by the alpha-beta model.

A collective runs over parts of dimensions (see `kiwi.mesh.placement`). Every device takes part in a
group of its own at the same time, so that links are shared: a part whose chips are s apart has s
groups on the same links, each of which gets a share of 1 / s.

b is the larger buffer of one device (see `kiwi.mesh.collectives`), n the devices of a part, N those
of all parts together, beta what one link carries one way.

- **All-gather, reduce-scatter.** What a device takes in, it takes in over both links of a ring and,
  at the end of a line, over one. Over several parts all links work at the same time, as long as the
  parts of the buffer that go first along one of them go later along another. The parts S of some
  dimensions carry least where they go first, (prod n - 1) / N of b, and have the sum of their
  links' rates; the time is the largest such quotient over all S. An all-reduce is both in turn.
- **All-to-all.** Each of two halves of a line sends the other half of its data: floor(n^2 / 4) / n
  of b over the link between them; around a ring there are two such links. The slowest dimension
  decides.
- **Collective-permute.** Of an unknown permutation the links carry as much as of an all-to-all, but
  no less than b.
- **Slices.** Each device has its share of the network, which is not blocked. XLA:TPU sends what is
  smallest over it: an all-reduce is a reduce-scatter in each slice, an exchange of the shards and
  an all-gather in each slice. The network thus carries (n - 1) / N of b in n - 1 steps, before or
  after a slice does its part; of an all-to-all (n - 1) / n of b.

Latency: one alpha for each link on the way of the furthest two devices.

Sources: Chan, Heimlich, Purkayastha, van de Geijn, *Collective communication: theory, practice, and
experience*, 2007 (bounds on meshes); Austin et al., *How to Scale Your Model*, 2025, part 3 (rings,
several dimensions, all-to-all).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import prod

from kiwi.mesh.collective_kinds import ALL_REDUCE, ALL_TO_ALL, COLLECTIVE_PERMUTE
from kiwi.mesh.placement import Connection, Dimension, DimensionPart
from kiwi.mesh.price import LinearCost


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
        """What its last device can take in."""
        return self.bytes_per_second * (2 if self.is_ring else 1)

    @property
    def longest_way_seconds(self) -> float:
        """The latency between its furthest devices."""
        return self.latency_seconds * (self.size // 2 if self.is_ring else self.size - 1)

    @property
    def exchange_seconds_per_byte(self) -> float:
        """Of an all-to-all."""
        return self.size**2 // 4 / self.size / self.inflow_bytes_per_second

    @property
    def permute_seconds_per_byte(self) -> float:
        """Of a collective-permute."""
        return max(self.exchange_seconds_per_byte, 1 / self.bytes_per_second)


def torus_cost(
    kind: str, parts: Sequence[DimensionPart], dimensions: Sequence[Dimension]
) -> LinearCost:
    """The cost of a collective `kind` over parts as `Placement.parts` yields them."""
    between = [p for p in parts if _connection(p, dimensions) is Connection.NETWORK]
    within = [p for p in parts if _connection(p, dimensions) is not Connection.NETWORK]
    rows = list(_rows(within, dimensions))
    if not between:
        return _within(kind, rows)
    slices, devices = prod(p.size for p in between), prod(p.size for p in within)
    link = dimensions[between[0].dimension].link
    per_byte = 1 / link.sustained_bytes_per_second
    if kind == COLLECTIVE_PERMUTE:
        return LinearCost(link.latency_seconds, per_byte)
    share = (slices - 1) / slices / (1 if kind == ALL_TO_ALL else devices)
    network = LinearCost((slices - 1) * link.latency_seconds, share * per_byte)
    return (network + network if kind == ALL_REDUCE else network) + _within(kind, rows)


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


def _within(kind: str, rows: Sequence[_Row]) -> LinearCost:
    """A collective that stays in its slice."""
    if not rows:
        return LinearCost(0.0, 0.0)
    latency = sum(row.longest_way_seconds for row in rows)
    if kind == ALL_TO_ALL:
        return LinearCost(latency, max(row.exchange_seconds_per_byte for row in rows))
    if kind == COLLECTIVE_PERMUTE:
        return LinearCost(latency, max(row.permute_seconds_per_byte for row in rows))
    gather = LinearCost(latency, _gather_seconds_per_byte(rows))
    return gather + gather if kind == ALL_REDUCE else gather


def _gather_seconds_per_byte(rows: Sequence[_Row]) -> float:
    total = prod(row.size for row in rows)
    some = chain.from_iterable(combinations(rows, k) for k in range(1, len(rows) + 1))
    return max(
        (prod(row.size for row in first) - 1)
        / total
        / sum(r.inflow_bytes_per_second for r in first)
        for first in some
    )
