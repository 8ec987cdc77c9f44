"""The cheapest way from one sharding of a tensor to another, and its time.

A resharding is a chain of moves (see `kiwi.mesh.moves`). The cheapest chain is a shortest path
in the graph of moves; the shortest paths between all pairs are found at once (Floyd, *Algorithm
97: Shortest path*, 1962; Warshall, 1962), which for graphs this small and dense (19 states for
rank 3 on two axes) takes less than one search per source.

Where one move suffices, XLA emits just that. Where several are needed XLA may choose a worse
chain, or gather the whole tensor and cut it; sharding constraints at the `waypoints` make it
follow the cheapest one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

import numpy as np

from kiwi.errors import InvalidArgumentError
from kiwi.mesh.device_mesh import DeviceMesh
from kiwi.mesh.moves import (
    DivisiblePattern,
    MovedTensor,
    MoveGraph,
    Traffic,
    divisible_pattern,
    move_graph,
    refines,
)
from kiwi.mesh.sharding import TensorSharding
from kiwi.messages import topics

# Relative difference below which two paths count as equally long.
_TIE = 1e-12


@dataclass(frozen=True)
class ReshardingStep:
    """One move of a resharding.

    - `kind`: "all-gather", "all-to-all", "collective-permute" or "slice"; from partial sums also
      "reduce-scatter" or "all-reduce".
    - `axes`: the mesh axes that it runs over; for a slice, those appended.
    - `dims`: the tensor dimensions whose sharding changes.
    - `bytes`: the buffer of one device that the time follows from: the local buffer of an
      all-to-all, the local result of all others.
    - `seconds`: predicted time.
    - `result`: the sharding after the step.
    """

    kind: str
    axes: tuple[int, ...]
    dims: tuple[int, ...]
    bytes: int
    seconds: float
    result: TensorSharding

    @classmethod
    def of(
        cls, traffic: Traffic, tensor: MovedTensor, before: TensorSharding, after: TensorSharding
    ) -> "ReshardingStep":
        """The move of a tensor with a given traffic from one sharding to another."""
        pairs = enumerate(zip(before.dims, after.dims, strict=True))
        return cls(
            kind=traffic.kind,
            axes=traffic.axes,
            dims=tuple(dim for dim, (a, b) in pairs if a != b),
            bytes=tensor.bytes // traffic.shards,
            seconds=traffic.seconds(tensor),
            result=after,
        )


@dataclass(frozen=True)
class ReshardingTable:
    """Resharding times between all even shardings of a tensor.

    - `mesh`: the devices.
    - `shape`: the shape of the whole tensor, not that of one shard.
    - `itemsize`: bytes per element.
    - `least_share`: as `kiwi.mesh.collectives.collective`'s, of what is gathered.

    Building one is cheap: the shortest paths are shared between tables of equal mesh, bytes
    and divisibility. Axes of size 1 are dropped from every sharding that is looked up.

    **Raises:** `InvalidArgumentError` for a negative size. Look-ups raise
    `ShardingConflictError` for a sharding that does not cut the tensor evenly.
    """

    mesh: DeviceMesh
    shape: tuple[int, ...]
    itemsize: int
    least_share: float = 1.0

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.shape) or self.itemsize <= 0:
            raise InvalidArgumentError(
                f"A tensor of shape {self.shape} with {self.itemsize} bytes per element does "
                "not exist.",
                topic=topics.COST_OF_NOTHING,
            )

    @property
    def tensor_bytes(self) -> int:
        """The bytes of the whole tensor."""
        return prod(self.shape) * self.itemsize

    def seconds(self, source: TensorSharding, target: TensorSharding) -> float:
        """The time of the cheapest chain of moves from `source` to `target`."""
        return float(self._paths.seconds[self._state(source), self._state(target)])

    def seconds_matrix(
        self, sources: Sequence[TensorSharding], targets: Sequence[TensorSharding]
    ) -> np.ndarray:
        """`seconds` for all pairs, an array of shape [sources, targets]."""
        rows = np.fromiter(map(self._state, sources), dtype=np.intp, count=len(sources))
        columns = np.fromiter(map(self._state, targets), dtype=np.intp, count=len(targets))
        return self._paths.seconds[np.ix_(rows, columns)]

    def is_cut(
        self, sources: Sequence[TensorSharding], targets: Sequence[TensorSharding]
    ) -> np.ndarray:
        """For all pairs, whether each device only cuts its part out of its buffer."""
        return np.array([[refines(target, source) for target in targets] for source in sources])

    def path(self, source: TensorSharding, target: TensorSharding) -> tuple[ReshardingStep, ...]:
        """The moves of the cheapest chain, empty if nothing is to be done. Shardings along it are
        written without axes of size 1."""
        steps: list[ReshardingStep] = []
        graph, moved = self._paths.graph, self.moved
        state, goal = self._state(source), self._state(target)
        while state != goal:
            before, state = state, int(self._paths.first_hop[state, goal])
            traffic = graph.cheapest_move(before, state, moved)
            ends = graph.states[before], graph.states[state]
            steps.append(ReshardingStep.of(traffic, moved, *ends))
        return tuple(steps)

    def waypoints(
        self, source: TensorSharding, target: TensorSharding
    ) -> tuple[TensorSharding, ...]:
        """The shardings between `source` and `target` on the cheapest chain, often none. A
        `with_sharding_constraint` for each makes XLA take this chain and no other."""
        return tuple(step.result for step in self.path(source, target)[:-1])

    @cached_property
    def _paths(self) -> "_Paths":
        return _shortest_paths(divisible_pattern(self.shape, self.mesh), self.moved)

    @cached_property
    def moved(self) -> MovedTensor:
        """The tensor. If copies surround all-to-alls, prices depend on its shape, too."""
        shape = self.shape if self.mesh.hardware.traits.copies_around_all_to_alls else None
        return MovedTensor(self.mesh, self.tensor_bytes, self.least_share, shape)

    def _state(self, sharding: TensorSharding) -> int:
        """The index of a sharding among the states."""
        index = self._paths.graph.index
        if sharding in index:
            return index[sharding]
        sharding.check(self.shape, self.mesh.shape)
        return index[sharding.without_trivial_axes(self.mesh.shape)]


@dataclass(frozen=True, eq=False)
class _Paths:
    """Shortest paths between all states of `graph`. `seconds[i, j]` is the time of the path,
    `first_hop[i, j]` the state after i on it."""

    graph: MoveGraph
    seconds: np.ndarray
    first_hop: np.ndarray


@lru_cache(maxsize=256)
def _shortest_paths(pattern: DivisiblePattern, moved: MovedTensor) -> _Paths:
    graph = move_graph(moved.mesh.shape, pattern)
    # XLA combines what it has partitioned: chains are chosen as if each tensor were alone.
    seconds, combined = graph.weights(replace(moved, least_share=1.0)), graph.weights(moved)
    # A tensor that is gathered to be cut again is held whole, on TPUs in tiles that are filled up.
    may_detour = True if moved.shape is None else ~graph.has_all_to_all()
    count = len(graph.states)
    first_hop = np.broadcast_to(np.arange(count, dtype=np.int32), (count, count)).copy()
    for middle in range(count):
        detour = seconds[:, middle, None] + seconds[None, middle, :]
        # On a tie, up to rounding, the path known before stays: it has fewer steps.
        shorter = (detour < seconds * (1 - _TIE)) & may_detour
        np.copyto(seconds, detour, where=shorter)
        detour = combined[:, middle, None] + combined[None, middle, :]
        np.copyto(combined, detour, where=shorter)
        np.copyto(first_hop, first_hop[:, middle, None], where=shorter)
    combined.setflags(write=False)
    return _Paths(graph, combined, first_hop)
