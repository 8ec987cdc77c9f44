"""The time of a collective, by the alpha-beta model.

Sending b bytes over a link takes alpha + b / beta seconds. A collective over n devices in a ring,
on a buffer of b bytes per device, takes (Thakur, Rabenseifner, Gropp, *Optimization of Collective
Communication Operations in MPICH*, 2005; Patarasuk, Yuan, *Bandwidth optimal all-reduce
algorithms*, 2009):

- all-gather, reduce-scatter, all-to-all: (n - 1) alpha + (n - 1) / n * b / beta,
- all-reduce: the sum of a reduce-scatter and an all-gather,
- collective-permute: alpha + b / beta.

**Bytes.** b is the *larger* buffer of one device: the result of an all-gather, the input of a
reduce-scatter, and the local buffer of an all-reduce, all-to-all or collective-permute, whose input
and result have the same size.

**Several axes.** The cheaper of two ways counts:

- *By axis.* A reduce-scatter goes axis by axis, the minor one first, each on the result of the
  previous (b, then b / n, ...), so that fast links carry the large buffers. An all-gather goes the
  reverse way. An all-to-all goes axis by axis on all of b.
- *Flat.* One ring runs over all devices, and each step is as slow as the slowest link. The ring
  leaves a group of m devices that are neighbours along minor axes only once. The link that leads
  out of the group therefore counts with m * beta: all m devices can lend their shares of it, as in
  NCCL, whose rings enter and leave a node at different devices. An all-to-all does not gain from
  neighbours, and counts the slowest link unchanged.

A collective-permute takes one hop over the slowest link. Axes of size 1 cost nothing. If the axes
lie on the dimensions of a TPU's topology, `kiwi.mesh.torus` gives the time.

**Measured.** If the mesh has a profile table with this kind along these axes, or over as many
devices, the table's time replaces the formula.

**Combined.** XLA combines collectives that wait for nothing, such as gathers of parameters, up to
`Hardware.combined_bytes`. Each then takes its share of the latency.

The model ignores contention between collectives, trees, and the choice of the protocol by size.
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
"""The dtype of measured collectives. Collectives of other dtypes are priced by their bytes."""


@dataclass(frozen=True)
class Collective:
    """One collective and its predicted time.

    - `kind`: an HLO opcode, one of `KINDS`.
    - `axes`: the mesh axes that it runs over, increasing, without axes of size 1.
    - `bytes`: the larger buffer of one device (see the module's text).
    - `seconds`: the predicted time of all repeats; 0 if there is no axis. `provenance`: the source
      of the time.
    - `repeats`: how often it runs in one run of its unit, as in the loop of a manual computation.
    """

    kind: str
    axes: tuple[int, ...]
    bytes: int
    seconds: float
    provenance: Provenance = Provenance.ANALYTIC
    repeats: float = 1


def collective(
    kind: str, mesh: DeviceMesh, axes: Iterable[int], size_bytes: int, *, least_share: float = 1.0
) -> Collective:
    """Returns the collective `kind` over `axes` with its predicted time.

    - `axes`: mesh axes, in any order.
    - `size_bytes`: the larger buffer of one device (see the module's text).
    - `least_share`: the collective's share in the bytes of all collectives with which it may be
      combined; 1 if it is alone.

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
    """Returns the cost of each way to run a collective. The cheapest way counts.

    **Raises:** as `collective`.
    """
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
    # The rates include the shares that neighbours lend, see the module's text.
    lent = [rate * prod(sizes[k + 1 :]) for k, rate in enumerate(rates)] if shrinking else rates
    ways = (
        _by_axis(rings, sizes if shrinking else [1] * len(sizes)),
        _ring(prod(sizes), max(latencies), min(lent)),
    )
    if kind == ALL_REDUCE:
        ways = tuple(way + way for way in ways)
    # Both ways are the same over one axis.
    return ways if len(axes) > 1 else ways[:1]


def _moving_axes(mesh: DeviceMesh, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the axes in increasing order, without axes of size 1."""
    if len(set(axes)) != len(axes) or any(not 0 <= axis < len(mesh.shape) for axis in axes):
        raise InvalidArgumentError(
            f"Axes {axes} are not distinct axes of a mesh of shape {mesh.shape}.",
            topic=topics.COST_OF_NOTHING,
        )
    return tuple(axis for axis in sorted(axes) if mesh.shape[axis] > 1)


def _ring(devices: int, latency_seconds: float, bytes_per_second: float) -> LinearCost:
    """Returns the cost of one pass around a ring of `devices`."""
    hops = devices - 1
    return LinearCost(hops * latency_seconds, hops / devices / bytes_per_second)


def _by_axis(rings: Sequence[LinearCost], parts: Sequence[int]) -> LinearCost:
    """Returns the cost of one ring after the other, the last axis first. Each ring divides the
    bytes for the following ones by its entry of `parts`."""
    total, share = LinearCost(0.0, 0.0), 1.0
    for ring, count in zip(reversed(rings), reversed(parts), strict=True):
        total += LinearCost(ring.latency_seconds, share * ring.seconds_per_byte)
        share /= count
    return total
