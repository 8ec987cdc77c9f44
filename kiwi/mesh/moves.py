"""The single moves between the layouts of a tensor, as a graph.

The states are all even shardings of the tensor, with every order of the mesh axes within a
dimension. A move is one of:

- *all-gather*: the minor-most one or several axes of one dimension are dropped,
- *slice*: axes are appended at the minor end of dimensions; each device cuts its part out of
  what it holds, which is memory traffic but no communication,
- *all-to-all*: the minor-most one or several axes of one dimension move to the minor end of
  another,
- *collective-permute*: the target cuts every dimension into as many pieces as the source, or a
  multiple: each device cuts its share out of what it holds, and whole local results move. It
  always exists: a block of the source lies on as many devices as want parts of it.

The time of every move is latency + bytes * coefficient with both independent of the shape, so
one graph serves all tensors with the same mesh and divisibility pattern.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, permutations, product
from math import inf, prod

import numpy as np

from kiwi.mesh.collectives import (
    ALL_GATHER,
    ALL_TO_ALL,
    COLLECTIVE_PERMUTE,
    LinearCost,
    linear_costs,
)
from kiwi.mesh.device_mesh import DeviceMesh
from kiwi.mesh.enumeration import DivisiblePattern, canonical_shardings
from kiwi.mesh.sharding import TensorSharding

SLICE = "slice"
"""The kind of the move without communication."""

_Dims = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Move:
    """One way from a state to a neighbour.

    - `kind`: an HLO opcode, or `SLICE`.
    - `axes`: the mesh axes that it runs over; for a slice, those appended.
    - `dims`: the tensor dimensions whose sharding changes.
    - `shards`: the buffer that counts is the tensor's bytes over `shards`.
    - `costs`: per byte of that buffer; the cheapest at a given size is taken.
    """

    kind: str
    axes: tuple[int, ...]
    dims: tuple[int, ...]
    shards: int
    costs: tuple[LinearCost, ...]

    def seconds(self, tensor_bytes: int) -> float:
        """The time of the move for a tensor of `tensor_bytes` in all."""
        return min(cost.seconds(tensor_bytes / self.shards) for cost in self.costs)


@dataclass(frozen=True, eq=False)
class MoveGraph:
    """All states and moves for one mesh and divisibility pattern.

    - `states`: the shardings; `index` is the inverse.
    - `moves[i, j]`: the moves from state i to state j.
    - `latency_seconds`, `seconds_per_byte`: arrays of shape [ways, states, states]; the
      weight of the edge i → j for a tensor of b bytes is the least over the ways of
      latency + b * coefficient. Infinite where there is no such way.
    """

    states: tuple[TensorSharding, ...]
    index: dict[TensorSharding, int]
    moves: dict[tuple[int, int], tuple[Move, ...]]
    latency_seconds: np.ndarray
    seconds_per_byte: np.ndarray

    def weights(self, tensor_bytes: int) -> np.ndarray:
        """Seconds of the cheapest single move, [states, states], 0 on the diagonal."""
        seconds = self.latency_seconds + self.seconds_per_byte * tensor_bytes
        return np.min(seconds, axis=0)

    def cheapest_move(self, source: int, target: int, tensor_bytes: int) -> Move:
        """The move whose seconds are `weights(tensor_bytes)[source, target]`."""
        return min(self.moves[source, target], key=lambda move: move.seconds(tensor_bytes))


@lru_cache(maxsize=1024)
def move_graph(mesh: DeviceMesh, pattern: DivisiblePattern) -> MoveGraph:
    """The graph for tensors of a divisibility pattern; cached, do not change it."""
    states = _ordered_states(pattern)
    index = {state: i for i, state in enumerate(states)}
    moves: dict[tuple[int, int], list[Move]] = defaultdict(list)
    for source, target, move in chain(
        _gathers(mesh, states),
        _slices(mesh, states),
        _all_to_alls(mesh, states),
        _permutes(mesh, states),
    ):
        # Moving axes to another dimension can lead to an uneven sharding: not a state.
        if target in index:
            moves[index[source], index[target]].append(move)
    latency_seconds, seconds_per_byte = _weight_arrays(len(states), moves)
    frozen = {pair: tuple(found) for pair, found in moves.items()}
    return MoveGraph(states, index, frozen, latency_seconds, seconds_per_byte)


def _ordered_states(pattern: DivisiblePattern) -> tuple[TensorSharding, ...]:
    """Every even sharding, with every order of the axes within a dimension."""
    return tuple(
        TensorSharding(dims)
        for sharding in canonical_shardings(pattern)
        for dims in product(*(tuple(permutations(axes)) for axes in sharding.dims))
    )


_Edges = Iterator[tuple[TensorSharding, TensorSharding, Move]]


def _gathers(mesh: DeviceMesh, states: Sequence[TensorSharding]) -> _Edges:
    for source in states:
        for dim, kept, dropped in _suffixes(source):
            target = _replace(source, {dim: kept})
            shards = target.shard_count(mesh.shape)
            yield source, target, _communication(ALL_GATHER, mesh, dropped, (dim,), shards)


def _all_to_alls(mesh: DeviceMesh, states: Sequence[TensorSharding]) -> _Edges:
    for source in states:
        shards = source.shard_count(mesh.shape)
        for dim, kept, moved in _suffixes(source):
            for other in range(source.rank):
                if other != dim:
                    target = _replace(source, {dim: kept, other: source.dims[other] + moved})
                    move = _communication(ALL_TO_ALL, mesh, moved, (dim, other), shards)
                    yield source, target, move


def _slices(mesh: DeviceMesh, states: Sequence[TensorSharding]) -> _Edges:
    """Any refinement is one slice, over several dimensions at once if need be."""
    cost = _slice_cost(mesh)
    for target in states:
        shards = target.shard_count(mesh.shape)
        for lengths in product(*(range(len(axes) + 1) for axes in target.dims)):
            pairs = list(zip(target.dims, lengths, strict=True))
            added = tuple(sorted(chain.from_iterable(axes[n:] for axes, n in pairs)))
            if added:
                source = TensorSharding(tuple(axes[:n] for axes, n in pairs))
                dims = _changed_dims(source.dims, target.dims)
                yield source, target, Move(SLICE, added, dims, shards, (cost,))


def _permutes(mesh: DeviceMesh, states: Sequence[TensorSharding]) -> _Edges:
    """All pairs where every dimension of the target has a multiple of the source's pieces.

    Some devices already hold what they need; the time is that of the others.
    """
    by_shards: dict[tuple[int, ...], list[TensorSharding]] = defaultdict(list)
    for state in states:
        by_shards[state.dim_shards(mesh.shape)].append(state)
    for coarse, fine in product(by_shards, repeat=2):
        if all(b % a == 0 for a, b in zip(coarse, fine, strict=True)):
            for source, target in product(by_shards[coarse], by_shards[fine]):
                if not _refines(target, source):  # Nothing, or a slice, does it already.
                    yield source, target, _permute(mesh, source, target, prod(fine))


def _permute(mesh: DeviceMesh, source: TensorSharding, target: TensorSharding, shards: int) -> Move:
    axes = _displaced_axes(mesh, source, target)
    dims = _changed_dims(source.dims, target.dims)
    (cost,) = linear_costs(COLLECTIVE_PERMUTE, mesh, axes)
    if source.shard_count(mesh.shape) != shards:
        cut = _slice_cost(mesh)
        cost = LinearCost(
            cost.latency_seconds + cut.latency_seconds,
            cost.seconds_per_byte + cut.seconds_per_byte,
        )
    return Move(COLLECTIVE_PERMUTE, axes, dims, shards, (cost,))


def _slice_cost(mesh: DeviceMesh) -> LinearCost:
    """Per byte of the local result, which is read and written once."""
    hardware = mesh.hardware
    return LinearCost(
        hardware.kernel_launch_seconds, 2 / hardware.sustained_memory_bytes_per_second
    )


def _refines(fine: TensorSharding, coarse: TensorSharding) -> bool:
    """Whether `fine` appends axes to the dimensions of `coarse`, or is equal to it."""
    pairs = zip(fine.dims, coarse.dims, strict=True)
    return all(axes[: len(major)] == major for axes, major in pairs)


def _displaced_axes(
    mesh: DeviceMesh, source: TensorSharding, target: TensorSharding
) -> tuple[int, ...]:
    """The axes along which blocks move: those that choose another digit of a position."""
    before, after = _digits(mesh, source), _digits(mesh, target)
    return tuple(axis for axis in mesh.nontrivial_axes if before.get(axis) != after.get(axis))


def _digits(mesh: DeviceMesh, sharding: TensorSharding) -> dict[int, tuple[int, int]]:
    """For each axis used, its dimension and the pieces of the dimension down to that axis.

    Two axes with the same digit cut the same way: the tensor positions that a device holds
    are written in mixed radix, one digit per axis, major first.
    """
    digits = {}
    for dim, axes in enumerate(sharding.dims):
        pieces = 1
        for axis in axes:
            pieces *= mesh.shape[axis]
            digits[axis] = (dim, pieces)
    return digits


def _communication(
    kind: str, mesh: DeviceMesh, axes: tuple[int, ...], dims: tuple[int, ...], shards: int
) -> Move:
    axes = tuple(sorted(axes))
    return Move(kind, axes, dims, shards, linear_costs(kind, mesh, axes))


def _suffixes(
    sharding: TensorSharding,
) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Each dimension, cut before each of its axes: (dimension, axes kept, axes behind)."""
    for dim, axes in enumerate(sharding.dims):
        for cut in range(len(axes)):
            yield dim, axes[:cut], axes[cut:]


def _replace(sharding: TensorSharding, changes: dict[int, tuple[int, ...]]) -> TensorSharding:
    return TensorSharding(tuple(changes.get(dim, axes) for dim, axes in enumerate(sharding.dims)))


def _changed_dims(source: _Dims, target: _Dims) -> tuple[int, ...]:
    return tuple(d for d, (a, b) in enumerate(zip(source, target, strict=True)) if a != b)


def _weight_arrays(
    count: int, moves: dict[tuple[int, int], list[Move]]
) -> tuple[np.ndarray, np.ndarray]:
    """The arrays of `MoveGraph`, [ways, count, count]."""
    ways = max((sum(len(m.costs) for m in found) for found in moves.values()), default=1)
    latency_seconds = np.full((ways, count, count), inf)
    seconds_per_byte = np.zeros((ways, count, count))
    latency_seconds[0, range(count), range(count)] = 0.0
    for (source, target), found in moves.items():
        costs = ((move.shards, cost) for move in found for cost in move.costs)
        for way, (shards, cost) in enumerate(costs):
            latency_seconds[way, source, target] = cost.latency_seconds
            seconds_per_byte[way, source, target] = cost.seconds_per_byte / shards
    return latency_seconds, seconds_per_byte
