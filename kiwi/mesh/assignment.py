"""Assigns the devices of a cluster to positions of a mesh, so that each axis has equal links.

A collective along an axis is as slow as the slowest connection in any of its groups, so the
devices of a group should be connected alike (Liu et al., *MAP*, 2023, section 4.2).

**The best assignment** to a mesh of a given shape has, from the minor axis to the major, the
fastest slowest connection of the axis; among these, the largest sum of the logarithms of all its
connections' bandwidths. Bandwidths count as equal within `TOLERANCE` of a common level, so that
noise decides nothing. Up to eight devices every assignment is tried; beyond, devices are exchanged
as long as that is an improvement, from several starts.

**The best shape** has the fewest axes of which each is uniform: whose connections are all of one
level. Where no shape is, the one whose worst axis is the least uneven.

**A cluster** is the latency and bandwidth of every pair of its devices, measured while no other
device sends. Its file is JSON (docs/guides/clusters.md).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import prod
from pathlib import Path

import numpy as np

from kiwi.errors import ClusterError, InvalidMeshError
from kiwi.json_file import FileFormat
from kiwi.mesh.device_mesh import DeviceMesh
from kiwi.mesh.hardware import Hardware, Link
from kiwi.messages import topics

FORMAT = FileFormat(
    "kiwi-cluster",
    1,
    "cluster",
    ClusterError,
    ending="}",
    again="`kiwi cluster --out FILE.json` writes one.",
)

_MATRICES = ("latency_seconds", "bandwidth_bytes_per_second")

TOLERANCE = 1.5
"""Connections whose bandwidths differ by at most this factor may count as equal."""
_MOST_AXES = 3
_TRIED_ALL = 8
_STARTS = 8


@dataclass(frozen=True, eq=False)
class Cluster:
    """Latency and bandwidth between every two of n devices.

    - `devices`: a name for each.
    - `latency_seconds`, `bandwidth_bytes_per_second`: arrays of shape [n, n]; change neither.

    **Raises:** `ClusterError` if there is no device, an array has another shape, a bandwidth is
    not positive, a latency is negative, or either is not finite.
    """

    devices: tuple[str, ...]
    latency_seconds: np.ndarray
    bandwidth_bytes_per_second: np.ndarray

    def __post_init__(self) -> None:
        count = len(self.devices)
        if not count:
            raise ClusterError("A cluster needs at least one device.")
        for name in _MATRICES:
            matrix = np.array(getattr(self, name), dtype=float)
            if matrix.shape != (count, count):
                raise ClusterError(
                    f"{name} has shape {matrix.shape} for {count} devices.",
                    suggestion="One row and one column per device.",
                )
            between = matrix[~np.eye(count, dtype=bool)]
            least = 0.0 if name == "latency_seconds" else np.finfo(float).tiny
            if not np.all(np.isfinite(between) & (between >= least)):
                raise ClusterError(
                    f"{name} has entries that no connection can have.",
                    cause="A pair was not measured, or its measurement failed.",
                    suggestion="Measure again; latencies from 0, bandwidths above 0.",
                )
            matrix.setflags(write=False)
            object.__setattr__(self, name, matrix)

    @property
    def size(self) -> int:
        """The number of devices."""
        return len(self.devices)

    def save(self, path: str | Path) -> None:
        """Writes the cluster's file; raises `ClusterError` if it cannot be written."""
        matrices = {name: getattr(self, name).tolist() for name in _MATRICES}
        header = {"format": FORMAT.name, "version": FORMAT.version, "devices": self.devices}
        FORMAT.write(f"{json.dumps(header | matrices, indent=1)}\n".encode(), path)

    @classmethod
    def load(cls, path: str | Path) -> "Cluster":
        """Reads a cluster's file; raises `ClusterError` if it cannot be read, is of another format
        or a later version, or does not describe a cluster."""
        document = FORMAT.read(path)
        parts = ("devices", *_MATRICES)
        missing = [key for key in parts if not isinstance(document.get(key), list)]
        if missing:
            raise FORMAT.invalid(str(path), f"It has no {missing[0]}.")
        try:
            matrices = [np.array(document[name], dtype=float) for name in _MATRICES]
        except (TypeError, ValueError) as error:
            raise ClusterError(
                f"{path} has a matrix that is not one of numbers.",
                cause="Rows of different lengths, or something that is no number.",
            ) from error
        return cls(tuple(map(str, document["devices"])), *matrices)


@dataclass(frozen=True)
class AxisLinks:
    """The connections along one axis of a mesh.

    - `size`: devices along it.
    - `link`: the least bandwidth and largest latency of its connections, without efficiency;
      boundless along a single device.
    - `fastest_bytes_per_second`: the most bandwidth of them.
    """

    size: int
    link: Link
    fastest_bytes_per_second: float

    @property
    def spread(self) -> float:
        """The largest bandwidth over the smallest; 1 if all are equal."""
        if self.size == 1:
            return 1.0
        return self.fastest_bytes_per_second / self.link.bandwidth_bytes_per_second

    @property
    def is_uniform(self) -> bool:
        """Whether all connections count as equal."""
        return self.spread <= TOLERANCE


@dataclass(frozen=True)
class Assignment:
    """Devices of a cluster on the positions of a mesh.

    - `shape`: of the mesh.
    - `order`: the device at each position, row-major: indices of `Cluster.devices`.
    - `axes`: the connections along each axis.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    axes: tuple[AxisLinks, ...]

    @property
    def is_uniform(self) -> bool:
        """Whether all axes have equal connections."""
        return all(axis.is_uniform for axis in self.axes)

    def device_mesh(
        self, hardware: Hardware | str, axis_names: Sequence[str] | None = None
    ) -> DeviceMesh:
        """The mesh to plan for, and to run on: with the links and the order of devices found.

        Device k of the cluster must be device k of `jax.devices()`.

        **Raises:** as `DeviceMesh.create`.
        """
        mesh = DeviceMesh.create(self.shape, hardware, axis_names)
        pairs = zip(self.axes, mesh.links, strict=True)
        links = tuple(axis.link if axis.size > 1 else link for axis, link in pairs)
        return DeviceMesh(mesh.shape, mesh.axis_names, links, mesh.hardware, self.order)


def best_assignment(cluster: Cluster, shape: Sequence[int] | None = None) -> Assignment:
    """The best assignment to a mesh of `shape`, or of the best shape; raises `InvalidMeshError` if
    the shape has another number of devices than the cluster."""
    if shape is not None:
        return _assign(cluster, _check_shape(cluster, shape))
    assignments = [_assign(cluster, candidate) for candidate in shapes_of(cluster.size)]
    return min(assignments, key=_preference)


def _check_shape(cluster: Cluster, shape: Sequence[int]) -> tuple[int, ...]:
    # DeviceMesh would complain as well, but about names.
    if not shape or min(shape) < 1 or prod(shape) != cluster.size:
        raise InvalidMeshError(
            f"A mesh of shape {tuple(shape)} does not hold {cluster.size} devices once each.",
            topic=topics.MESH_OF_CLUSTER,
        )
    return tuple(shape)


def _preference(assignment: Assignment) -> tuple[float, ...]:
    spread = max((axis.spread for axis in assignment.axes), default=1.0)
    slowest = [-axis.link.bandwidth_bytes_per_second for axis in reversed(assignment.axes)]
    return (1.0 if assignment.is_uniform else spread, float(len(assignment.shape)), *slowest)


def shapes_of(count: int, axes: int = _MOST_AXES) -> Iterator[tuple[int, ...]]:
    """All shapes of `count` devices of at most so many axes, larger than 1."""
    yield (count,)
    if axes > 1:
        for last in range(2, count // 2 + 1):
            if count % last == 0:
                yield from ((*rest, last) for rest in shapes_of(count // last, axes - 1))


def _assign(cluster: Cluster, shape: tuple[int, ...]) -> Assignment:
    scores = _Scores(cluster, shape)
    if cluster.size <= _TRIED_ALL:
        orders = np.array(list(permutations(range(cluster.size))), dtype=np.intp)
        best = orders[scores.best(orders)]
    else:
        starts = [_improved(scores, start) for start in _starts(cluster)]
        best = starts[scores.best(np.array(starts))]
    order = tuple(int(device) for device in best)
    return Assignment(shape, order, tuple(_axis_links(cluster, shape, order)))


class _Scores:
    """Compares assignments to one shape, many at once."""

    def __init__(self, cluster: Cluster, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._level = _levels(cluster.bandwidth_bytes_per_second)
        self._pairs = [_position_pairs(shape, axis) for axis in range(len(shape))]

    def best(self, orders: np.ndarray) -> int:
        """The best order's index, the first of equals."""
        worst, total = [], []  # one number per order each, larger is better
        for one, other in reversed(self._pairs):
            if len(one):
                level = self._level[orders[:, one], orders[:, other]]
                worst.append(level.min(axis=1))
                # Rounded, since sums in another order differ in the last digits.
                total.append(level.sum(axis=1).round(3))
        alive = np.arange(len(orders))
        for key in (*worst, *total):  # the most important first
            alive = alive[key[alive] == key[alive].max()]
        return int(alive[0])


def _position_pairs(shape: tuple[int, ...], axis: int) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of positions of a mesh that lie in one group of an axis."""
    positions = np.arange(prod(shape)).reshape(shape)
    lines = np.moveaxis(positions, axis, -1).reshape(-1, shape[axis])
    pairs = [(line[i], line[j]) for line in lines for i, j in combinations(range(len(line)), 2)]
    one, other = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    return one, other


def _levels(bandwidth: np.ndarray) -> np.ndarray:
    """The logarithm of each bandwidth, rounded down to its level, the same in both directions.

    From the slowest connection up, a level contains all connections that are at most `TOLERANCE`
    faster than its slowest. A pair is as fast as its slower direction.
    """
    both = np.minimum(bandwidth, bandwidth.T)
    level = np.zeros_like(both)
    start = 0.0
    for value in np.unique(both[~np.eye(len(both), dtype=bool)]):
        start = value if value > start * TOLERANCE else start
        level[both == value] = np.log(start)
    return np.round(level, 6)


def _starts(cluster: Cluster) -> Iterator[np.ndarray]:
    """The starts: the given order; each device followed by its nearest; and random orders."""
    yield np.arange(cluster.size)
    level = _levels(cluster.bandwidth_bytes_per_second)
    chain, left = [0], set(range(1, cluster.size))
    while left:
        sums = {device: (level[chain[::-1], device].tolist(), -device) for device in left}
        chain.append(max(left, key=lambda device: sums[device]))
        left.remove(chain[-1])
    yield np.array(chain)
    rng = np.random.default_rng(0)
    for _ in range(_STARTS):
        yield rng.permutation(cluster.size)


def _improved(scores: _Scores, order: np.ndarray) -> np.ndarray:
    """Exchanges the best two devices until no exchange is an improvement."""
    pairs = np.array(list(combinations(range(len(order)), 2)))
    rows = np.arange(len(pairs))
    while True:
        exchanged = np.tile(order, (len(pairs) + 1, 1))
        exchanged[1 + rows, pairs[:, 0]] = order[pairs[:, 1]]
        exchanged[1 + rows, pairs[:, 1]] = order[pairs[:, 0]]
        best = scores.best(exchanged)
        if best == 0:
            return order
        order = exchanged[best]


def _axis_links(
    cluster: Cluster, shape: tuple[int, ...], order: Sequence[int]
) -> Iterator[AxisLinks]:
    devices = np.array(order)
    bandwidth, latency = cluster.bandwidth_bytes_per_second, cluster.latency_seconds
    for axis, size in enumerate(shape):
        one, other = (devices[positions] for positions in _position_pairs(shape, axis))
        if size == 1:
            # Nothing is ever sent along it.
            yield AxisLinks(size, Link(np.inf, 0.0), np.inf)
            continue
        speeds = np.concatenate([bandwidth[one, other], bandwidth[other, one]])
        delays = np.concatenate([latency[one, other], latency[other, one]])
        yield AxisLinks(size, Link(float(speeds.min()), float(delays.max())), float(speeds.max()))
