"""Assigns the devices of a cluster to the positions of a mesh, so that each axis has equal links.

A collective along an axis is as slow as the slowest connection in any of its groups, so all devices
of a group should have equal connections (Liu et al., *MAP*, 2023, section 4.2).

**The best assignment** to a mesh of a given shape maximises the bandwidth of the slowest connection
of each axis, the minor axis first. Among equal assignments it maximises, in the same order, the sum
of the logarithms of the bandwidths of all connections of the axis. Bandwidths within `TOLERANCE` of
a common level count as equal, so that noise decides nothing. Up to eight devices, every assignment
is tried. For more devices, pairs of devices are exchanged as long as an exchange is an improvement,
from several starts.

**The best shape** is the shape with the fewest axes among the shapes all of whose axes are uniform.
An axis is uniform if all of its connections count as equal. If there is no such shape, the best
shape is the one whose worst axis is the least uneven.

**A cluster** has the latency and bandwidth of every pair of its devices, measured while no other
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
"""The largest factor between bandwidths that may count as equal."""
_MOST_AXES = 3
"""The largest number of axes of the shapes that are compared."""
_TRIED_ALL = 8
"""The largest number of devices for which every assignment is tried."""
_STARTS = 8
"""The number of random orders from which devices are exchanged."""


@dataclass(frozen=True, eq=False)
class Cluster:
    """Latency and bandwidth between every two of n devices.

    - `devices`: the name of each device.
    - `latency_seconds`, `bandwidth_bytes_per_second`: read-only arrays of shape [n, n].

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
        """Writes the cluster's file.

        **Raises:** `ClusterError` if it cannot be written.
        """
        matrices = {name: getattr(self, name).tolist() for name in _MATRICES}
        header = {"format": FORMAT.name, "version": FORMAT.version, "devices": self.devices}
        FORMAT.write(f"{json.dumps(header | matrices, indent=1)}\n".encode(), path)

    @classmethod
    def load(cls, path: str | Path) -> "Cluster":
        """Reads a cluster's file.

        **Raises:** `ClusterError` if the file cannot be read, is of another format or a later
        version, or does not describe a cluster.
        """
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

    - `size`: the number of devices along the axis.
    - `link`: the smallest bandwidth and the largest latency of the connections, with efficiency 1.
      An axis of one device has infinite bandwidth.
    - `fastest_bytes_per_second`: the largest bandwidth of the connections.
    """

    size: int
    link: Link
    fastest_bytes_per_second: float

    @property
    def spread(self) -> float:
        """The ratio of the largest bandwidth to the smallest; 1 if all are equal."""
        if self.size == 1:
            return 1.0
        return self.fastest_bytes_per_second / self.link.bandwidth_bytes_per_second

    @property
    def is_uniform(self) -> bool:
        """Whether all connections of the axis count as equal."""
        return self.spread <= TOLERANCE


@dataclass(frozen=True)
class Assignment:
    """The devices of a cluster at the positions of a mesh.

    - `shape`: the shape of the mesh.
    - `order`: the device at each position, row-major, as indices of `Cluster.devices`.
    - `axes`: the connections along each axis.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    axes: tuple[AxisLinks, ...]

    @property
    def is_uniform(self) -> bool:
        """Whether each axis has equal connections."""
        return all(axis.is_uniform for axis in self.axes)

    def device_mesh(
        self, hardware: Hardware | str, axis_names: Sequence[str] | None = None
    ) -> DeviceMesh:
        """Returns the mesh to plan for and to run on, with the links and the device order of this
        assignment.

        Device k of the cluster must be device k of `jax.devices()`.

        **Raises:** as `DeviceMesh.create`.
        """
        mesh = DeviceMesh.create(self.shape, hardware, axis_names)
        pairs = zip(self.axes, mesh.links, strict=True)
        links = tuple(axis.link if axis.size > 1 else link for axis, link in pairs)
        return DeviceMesh(mesh.shape, mesh.axis_names, links, mesh.hardware, self.order)


def best_assignment(cluster: Cluster, shape: Sequence[int] | None = None) -> Assignment:
    """Returns the best assignment to a mesh of `shape`, by default of the best shape.

    **Raises:** `InvalidMeshError` if the shape has another number of devices than the cluster.
    """
    if shape is not None:
        return _assign(cluster, _check_shape(cluster, shape))
    assignments = [_assign(cluster, candidate) for candidate in shapes_of(cluster.size)]
    return min(assignments, key=_preference)


def _check_shape(cluster: Cluster, shape: Sequence[int]) -> tuple[int, ...]:
    # DeviceMesh checks the shape, too, but its message is about axis names.
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
    """Yields all mesh shapes of `count` devices with at most `axes` axes, all larger than 1 if
    there are several."""
    yield (count,)
    if axes > 1:
        for last in range(2, count // 2 + 1):
            if count % last == 0:
                yield from ((*major, last) for major in shapes_of(count // last, axes - 1))


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
    """Compares many assignments to one shape at a time."""

    def __init__(self, cluster: Cluster, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._level = _levels(cluster.bandwidth_bytes_per_second)
        self._pairs = [_position_pairs(shape, axis) for axis in range(len(shape))]

    def best(self, orders: np.ndarray) -> int:
        """Returns the index of the best order, and of the first among equal ones. `orders`: shape
        [orders, devices]."""
        worst, total = [], []  # Each entry has one number per order; larger is better.
        for first_positions, second_positions in reversed(self._pairs):
            if len(first_positions):
                level = self._level[orders[:, first_positions], orders[:, second_positions]]
                worst.append(level.min(axis=1))
                # Sums in another order differ in the last digits.
                total.append(level.sum(axis=1).round(3))
        alive = np.arange(len(orders))
        for key in (*worst, *total):  # The most important key comes first.
            alive = alive[key[alive] == key[alive].max()]
        return int(alive[0])


def _position_pairs(shape: tuple[int, ...], axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns all pairs of positions of a mesh that lie in one group of an axis, as two arrays."""
    positions = np.arange(prod(shape)).reshape(shape)
    lines = np.moveaxis(positions, axis, -1).reshape(-1, shape[axis])
    pairs = [(line[i], line[j]) for line in lines for i, j in combinations(range(len(line)), 2)]
    first_positions, second_positions = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    return first_positions, second_positions


def _levels(bandwidth: np.ndarray) -> np.ndarray:
    """Returns the logarithm of each bandwidth, rounded down to its level. A pair counts by its
    slower direction.

    The lowest level begins at the slowest connection. A level contains all connections that are
    faster than its slowest by at most the factor `TOLERANCE`; the next connection begins the next
    level.
    """
    bandwidths = np.minimum(bandwidth, bandwidth.T)
    level = np.zeros_like(bandwidths)
    start = 0.0
    for value in np.unique(bandwidths[~np.eye(len(bandwidths), dtype=bool)]):
        start = value if value > start * TOLERANCE else start
        level[bandwidths == value] = np.log(start)
    return np.round(level, 6)


def _starts(cluster: Cluster) -> Iterator[np.ndarray]:
    """Yields the orders from which the exchange starts: the cluster's order, an order in which each
    device is followed by its nearest, and random orders."""
    yield np.arange(cluster.size)
    level = _levels(cluster.bandwidth_bytes_per_second)
    chain, unplaced = [0], set(range(1, cluster.size))
    while unplaced:
        sums = {device: (level[chain[::-1], device].tolist(), -device) for device in unplaced}
        chain.append(max(unplaced, key=lambda device: sums[device]))
        unplaced.remove(chain[-1])
    yield np.array(chain)
    rng = np.random.default_rng(0)
    for _ in range(_STARTS):
        yield rng.permutation(cluster.size)


def _improved(scores: _Scores, order: np.ndarray) -> np.ndarray:
    """Returns the order after exchanging pairs of devices, the best pair each time, until no
    exchange is an improvement."""
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
        senders, receivers = (devices[positions] for positions in _position_pairs(shape, axis))
        if size == 1:
            # Nothing is sent along this axis.
            yield AxisLinks(size, Link(np.inf, 0.0), np.inf)
            continue
        speeds = np.concatenate([bandwidth[senders, receivers], bandwidth[receivers, senders]])
        delays = np.concatenate([latency[senders, receivers], latency[receivers, senders]])
        yield AxisLinks(size, Link(float(speeds.min()), float(delays.max())), float(speeds.max()))
