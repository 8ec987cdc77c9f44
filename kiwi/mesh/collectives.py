"""The time of a collective, by the alpha-beta model.

Sending b bytes over a link takes alpha + b / beta seconds. A collective over n devices in a
ring, on a buffer of b bytes per device, then takes (Thakur, Rabenseifner, Gropp, *Optimization
of Collective Communication Operations in MPICH*, 2005; Patarasuk, Yuan, *Bandwidth optimal
all-reduce algorithms*, 2009):

- all-gather, reduce-scatter, all-to-all: (n - 1) alpha + (n - 1) / n * b / beta,
- all-reduce: twice that, as a reduce-scatter and an all-gather,
- collective-permute: alpha + b / beta.

**Which bytes.** b is the *larger* buffer of one device: the result of an all-gather, the
input of a reduce-scatter, and the local buffer (before and after are alike) of all-reduce,
all-to-all and collective-permute.

**Several axes.** The cheaper of two ways is taken:

- *by axis*: a reduce-scatter goes axis by axis, the minor one first, each on what the previous
  left (b, then b / n, ...), so that fast links carry the large buffers; an all-gather is the
  same backwards; an all-to-all goes axis by axis on all of b.
- *flat*: one ring over all devices, each step as slow as the slowest link. Such a ring leaves
  a group of m devices that are neighbours along minor axes only once, so the m devices can
  lend it their m shares of the link that leads out (as NCCL does with several rings that enter
  and leave a node at different devices): that link counts with m * beta. An all-to-all gains
  nothing from neighbours, it takes the slowest link as it is.

A collective-permute takes one hop over the slowest link. Axes of size 1 cost nothing.
Where the axes lie on the dimensions of a TPU's topology, `kiwi.mesh.torus` tells the time.

**Measured.** Where the mesh has a profile table that knows the kind along these axes, or over as
many devices, its time goes before the formula's.

**Combined.** What waits for nothing, as gathers of parameters do, XLA combines with others to one
of `Hardware.combined_bytes` at most; each then takes its share of the latency.

Not modelled: contention between collectives, trees, the choice of protocol by size.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from kiwi.errors import InvalidArgumentError
from kiwi.mesh.collective_kinds import ALL_REDUCE, ALL_TO_ALL, COLLECTIVE_PERMUTE, KINDS
from kiwi.mesh.device_mesh import DeviceMesh
from kiwi.mesh.profile_entries import LinearCost, Price, Provenance
from kiwi.mesh.torus import torus_costs
from kiwi.messages import topics

RECORDED_DTYPE = "float32"
"""Collectives are measured on it; those of other dtypes are priced by their bytes."""


@dataclass(frozen=True)
class Collective:
    """One collective and its predicted time.

    - `kind`: an HLO opcode, one of `KINDS`.
    - `axes`: the mesh axes that it runs over, increasing, without those of size 1.
    - `bytes`: the larger buffer of one device (see the module's text).
    - `seconds`: predicted time; 0 if no axis is left. `provenance`: the provenance of the time.
    """

    kind: str
    axes: tuple[int, ...]
    bytes: int
    seconds: float
    provenance: Provenance = Provenance.ANALYTIC


def collective(
    kind: str, mesh: DeviceMesh, axes: Iterable[int], size_bytes: int, *, least_share: float = 1.0
) -> Collective:
    """The collective `kind` over `axes`; see the module's text for `size_bytes`.

    The order of `axes` does not matter. `least_share` is its share in the bytes of all collectives
    that it may be combined with; 1 if it is alone.

    **Raises:** `InvalidArgumentError` for an unknown kind, for axes that the mesh lacks or that
    occur twice, and for negative bytes.
    """
    if size_bytes < 0:
        raise InvalidArgumentError(
            f"A collective cannot move {size_bytes} bytes.", topic=topics.COST_OF_NOTHING
        )
    moving = _moving_axes(mesh, tuple(axes))
    most_bytes = mesh.hardware.combined_bytes(kind)
    share = min(1.0, max(least_share, size_bytes / most_bytes)) if most_bytes else 1.0
    seconds = min(
        share * cost.latency_seconds + cost.seconds_per_byte * size_bytes
        for cost in linear_costs(kind, mesh, moving)
    )
    price = Price(seconds, Provenance.ANALYTIC)
    if mesh.table is not None and moving:
        price = mesh.table.collective(kind, moving, mesh.shape, size_bytes, seconds)
    return Collective(kind, moving, size_bytes, price.seconds, price.provenance)


@lru_cache(maxsize=4096)
def linear_costs(kind: str, mesh: DeviceMesh, axes: tuple[int, ...]) -> tuple[LinearCost, ...]:
    """The cost of each way to run a collective, of which the cheapest is taken; raises as
    `collective`."""
    if kind not in KINDS:
        raise InvalidArgumentError(
            f"{kind!r} is not a collective.",
            topic=topics.COST_OF_NOTHING,
            suggestion="One of " + ", ".join(KINDS) + ".",
        )
    axes = _moving_axes(mesh, axes)
    if not axes:
        return (LinearCost(0.0, 0.0),)
    if mesh.placement is not None:
        return torus_costs(kind, mesh.placement.parts(axes), mesh.dimensions)
    sizes = [mesh.shape[axis] for axis in axes]
    rates = [mesh.links[axis].sustained_bytes_per_second for axis in axes]
    latencies = [mesh.links[axis].latency_seconds for axis in axes]
    if kind == COLLECTIVE_PERMUTE:
        return (LinearCost(max(latencies), 1 / min(rates)),)
    rings = list(map(_ring, sizes, latencies, rates))
    shrinking = kind != ALL_TO_ALL
    # With the shares that neighbours lend, see the module's text.
    lent = [rate * prod(sizes[k + 1 :]) for k, rate in enumerate(rates)] if shrinking else rates
    ways = (
        _by_axis(rings, sizes if shrinking else [1] * len(sizes)),
        _ring(prod(sizes), max(latencies), min(lent)),
    )
    if kind == ALL_REDUCE:
        ways = tuple(way + way for way in ways)
    # Over one axis both ways are the same.
    return ways if len(axes) > 1 else ways[:1]


def _moving_axes(mesh: DeviceMesh, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The axes in increasing order, without those of size 1."""
    if len(set(axes)) != len(axes) or any(not 0 <= axis < len(mesh.shape) for axis in axes):
        raise InvalidArgumentError(
            f"Axes {axes} are not distinct axes of a mesh of shape {mesh.shape}.",
            topic=topics.COST_OF_NOTHING,
        )
    return tuple(axis for axis in sorted(axes) if mesh.shape[axis] > 1)


def _ring(devices: int, latency_seconds: float, bytes_per_second: float) -> LinearCost:
    """One pass around a ring."""
    hops = devices - 1
    return LinearCost(hops * latency_seconds, hops / devices / bytes_per_second)


def _by_axis(rings: Sequence[LinearCost], parts: Sequence[int]) -> LinearCost:
    """One ring after the other, the last axis first. Each divides the bytes by its number of
    devices."""
    total, share = LinearCost(0.0, 0.0), 1.0
    for ring, count in zip(reversed(rings), reversed(parts), strict=True):
        total += LinearCost(ring.latency_seconds, share * ring.seconds_per_byte)
        share /= count
    return total
