"""The cheapest way from one sharding of a tensor to another, and its time.

A resharding is a chain of moves (see `kiwi.mesh.moves`). The cheapest chain is a shortest path in
the graph of moves. The shortest paths between all pairs of states are found together (Floyd,
*Algorithm 97: Shortest path*, 1962; Warshall, 1962), because the graphs are small and dense.

If one move suffices, XLA emits that move. If several are needed, XLA may choose a worse chain, or
gather the whole tensor and cut it. Sharding constraints at the `waypoints` make XLA follow the
cheapest chain.
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

# The relative difference below which two paths count as equally long.
_TIE = 1e-12


@dataclass(frozen=True)
class ReshardingStep:
    """One move of a resharding.

    - `kind`: "all-gather", "all-to-all", "collective-permute" or "slice"; from partial sums also
      "reduce-scatter" or "all-reduce".
    - `axes`: the mesh axes that the move runs over; for a slice, the appended axes.
    - `dims`: the tensor dimensions whose sharding changes.
    - `bytes`: the buffer of one device that determines the time: the local buffer of an all-to-all,
      the local result of any other move.
    - `seconds`: the predicted time.
    - `result`: the sharding after the move.
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
        """Returns the step that moves a tensor from the sharding `before` to `after`."""
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
    - `shape`: the shape of the whole tensor, not of one shard.
    - `itemsize`: the bytes per element.
    - `least_share`: as in `kiwi.mesh.collectives.collective`, for all-gathers.

    Tables with equal mesh, bytes and divisibility share their shortest paths. Look-ups ignore axes
    of size 1 in shardings.

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
        """Returns the time of the cheapest chain of moves from `source` to `target`."""
        return float(self._paths.seconds[self._state(source), self._state(target)])

    def seconds_matrix(
        self, sources: Sequence[TensorSharding], targets: Sequence[TensorSharding]
    ) -> np.ndarray:
        """Returns `seconds` for all pairs, float64 of shape [sources, targets]."""
        rows = np.fromiter(map(self._state, sources), dtype=np.intp, count=len(sources))
        columns = np.fromiter(map(self._state, targets), dtype=np.intp, count=len(targets))
        return self._paths.seconds[np.ix_(rows, columns)]

    def is_cut(
        self, sources: Sequence[TensorSharding], targets: Sequence[TensorSharding]
    ) -> np.ndarray:
        """Returns, for all pairs, whether each device only cuts its part out of its buffer, without
        communication; shape [sources, targets]."""
        return np.array([[refines(target, source) for target in targets] for source in sources])

    def path(self, source: TensorSharding, target: TensorSharding) -> tuple[ReshardingStep, ...]:
        """Returns the moves of the cheapest chain; empty if `source` and `target` are equal. Their
        shardings have no axes of size 1."""
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
        """Returns the shardings between `source` and `target` on the cheapest chain, often none. A
        `with_sharding_constraint` for each of them makes XLA take this chain."""
        return tuple(step.result for step in self.path(source, target)[:-1])

    @cached_property
    def _paths(self) -> "_Paths":
        return _shortest_paths(divisible_pattern(self.shape, self.mesh), self.moved)

    @cached_property
    def moved(self) -> MovedTensor:
        """The tensor as `MoveGraph` prices it. It has a shape if copies surround all-to-alls, whose
        prices depend on it."""
        shape = self.shape if self.mesh.hardware.traits.copies_around_all_to_alls else None
        return MovedTensor(self.mesh, self.tensor_bytes, self.least_share, shape)

    def _state(self, sharding: TensorSharding) -> int:
        """Returns the index of a sharding among the states."""
        index = self._paths.graph.index
        if sharding in index:
            return index[sharding]
        sharding.check(self.shape, self.mesh.shape)
        return index[sharding.without_trivial_axes(self.mesh.shape)]


@dataclass(frozen=True, eq=False)
class _Paths:
    """The shortest paths between all states of `graph`. `seconds[i, j]` is the time of the path
    from i to j, `first_hop[i, j]` the state after i on it."""

    graph: MoveGraph
    seconds: np.ndarray
    first_hop: np.ndarray


@lru_cache(maxsize=256)
def _shortest_paths(pattern: DivisiblePattern, moved: MovedTensor) -> _Paths:
    graph = move_graph(moved.mesh.shape, pattern)
    # XLA combines collectives after partitioning: chains are chosen as if each tensor were alone.
    seconds, combined = graph.weights(replace(moved, least_share=1.0)), graph.weights(moved)
    # On TPUs, chains replace no all-to-all: they may hold the whole tensor, in padded tiles.
    may_detour = True if moved.shape is None else ~graph.has_all_to_all()
    count = len(graph.states)
    first_hop = np.broadcast_to(np.arange(count, dtype=np.int32), (count, count)).copy()
    for middle in range(count):
        detour = seconds[:, middle, None] + seconds[None, middle, :]
        # On a tie, up to rounding, the path known before stays, since it has fewer steps.
        shorter = (detour < seconds * (1 - _TIE)) & may_detour
        np.copyto(seconds, detour, where=shorter)
        detour = combined[:, middle, None] + combined[None, middle, :]
        np.copyto(combined, detour, where=shorter)
        np.copyto(first_hop, first_hop[:, middle, None], where=shorter)
    combined.setflags(write=False)
    return _Paths(graph, combined, first_hop)
