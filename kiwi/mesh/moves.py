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

A fifth, the *reduce-scatter*, leads from partial sums to a state; nothing leads back.
Which moves there are depends on the shape of the mesh and on which axes cut which dimension, so
one graph serves all tensors of a pattern, whatever the links. What a move costs depends on its
`Traffic` and the bytes of the tensor alone: thousands of moves have tens of prices.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations, permutations, product
from math import inf, prod

import numpy as np

from kiwi.mesh.collective_kinds import ALL_GATHER, ALL_TO_ALL, COLLECTIVE_PERMUTE
from kiwi.mesh.collectives import collective
from kiwi.mesh.device_mesh import DeviceMesh
from kiwi.mesh.profile_entries import Price, Provenance
from kiwi.mesh.sharding import TensorSharding
from kiwi.mesh.tiles import buffer_elements

SLICE = "slice"
"""The kind of the move without communication."""

_Shape = tuple[int, ...]

DivisiblePattern = tuple[tuple[tuple[int, ...], ...], ...]
"""For each tensor dimension, the sets of mesh axes (each increasing) that cut it evenly."""


def divisible_pattern(shape: Sequence[int], mesh: DeviceMesh) -> DivisiblePattern:
    """Which sets of mesh axes cut which dimension evenly.

    All that decides which shardings of a tensor exist: two shapes with the same pattern have
    the same shardings. Axes of size 1 are left out.
    """
    axes = mesh.nontrivial_axes
    subsets = [s for count in range(len(axes) + 1) for s in combinations(axes, count)]
    return tuple(
        tuple(s for s in subsets if size % prod(mesh.shape[axis] for axis in s) == 0)
        for size in shape
    )


def enumerate_shardings(shape: Sequence[int], mesh: DeviceMesh) -> list[TensorSharding]:
    """All even shardings of a tensor of `shape`, in a fixed order, replicated first.

    Where several mesh axes split one dimension they come in increasing order only. Axes of
    size 1 are never used, because they change nothing.
    """
    return canonical_shardings(divisible_pattern(shape, mesh))


def canonical_shardings(pattern: DivisiblePattern) -> list[TensorSharding]:
    """The shardings of `enumerate_shardings`, from the pattern of the shape."""
    choices = sorted(_choices(pattern), key=lambda dims: (sum(map(len, dims)), dims))
    return [TensorSharding(dims) for dims in choices]


def _choices(pattern: DivisiblePattern) -> Iterator[tuple[tuple[int, ...], ...]]:
    """One set of axes per dimension, no axis in two of them."""
    if not pattern:
        yield ()
        return
    for rest in _choices(pattern[1:]):
        taken = {axis for axes in rest for axis in axes}
        for axes in pattern[0]:
            if not taken.intersection(axes):
                yield (axes, *rest)


@dataclass(frozen=True)
class MovedTensor:
    """A tensor that is moved over a mesh.

    - `bytes`: those of the whole tensor.
    - `least_share`: as in `collective`, for gathers.
    - `shape`: given if tiles matter.
    """

    mesh: DeviceMesh
    bytes: int
    least_share: float = 1.0
    shape: _Shape | None = None


@dataclass(frozen=True)
class Traffic:
    """The properties of a move that, with the size of the tensor, determine its time.

    - `kind`: an HLO opcode, or `SLICE`.
    - `axes`: the mesh axes that it runs over, increasing; for a slice, those appended.
    - `shards`: the time follows from a buffer of the tensor's bytes over `shards`.
    - `cuts_first`: each device cuts what it sends out of a larger buffer.
    - `dim`: 0 for an all-gather of the first dimension, 1 for one of another.
    - `pieces`: of an all-to-all, into how many each dimension is cut when it sends them.
    """

    kind: str
    axes: tuple[int, ...]
    shards: int
    cuts_first: bool = False
    dim: int = 0
    pieces: _Shape = ()

    def seconds(self, tensor: MovedTensor) -> float:
        """The time that it takes a tensor."""
        mesh, moved = tensor.mesh, tensor.bytes // self.shards
        if self.kind == SLICE:
            return slice_price(mesh, moved).seconds
        share = tensor.least_share if self.kind == ALL_GATHER else 1.0
        seconds = collective(self.kind, mesh, self.axes, moved, least_share=share).seconds
        seconds += transposed_seconds(mesh, self.axes, self.dim, moved)
        if self.kind == ALL_TO_ALL and mesh.hardware.traits.copies_around_all_to_alls:
            seconds += self._copied_seconds(mesh, moved, tensor.shape)
        return seconds + slice_price(mesh, moved).seconds if self.cuts_first else seconds

    def _copied_seconds(self, mesh: DeviceMesh, moved_bytes: int, shape: _Shape | None) -> float:
        """Seconds of the copies around an all-to-all: one before or after it, or five if the
        pieces' tiles are filled up, since the padding is not sent."""
        cut = tuple(size // n for size, n in zip(shape or (), self.pieces, strict=False))
        padding = buffer_elements(cut) / prod(cut) if prod(cut) else 1.0
        copies = 5 * padding if padding > 1 else 1
        return copies * slice_price(mesh, moved_bytes).seconds


@dataclass(frozen=True, eq=False)
class MoveGraph:
    """All states and moves for one shape of mesh and divisibility pattern.

    - `states`: the shardings; `index` is the inverse.
    - `traffic`: the distinct kinds of traffic.
    - `ways`: array of shape [ways, states, states]: for each pair the indices in `traffic` of
      its moves; -1 where there is no such move, -2 on the diagonal.
    """

    states: tuple[TensorSharding, ...]
    index: dict[TensorSharding, int]
    traffic: tuple[Traffic, ...]
    ways: np.ndarray

    def weights(self, tensor: MovedTensor) -> np.ndarray:
        """Seconds of the cheapest single move, [states, states], 0 on the diagonal."""
        seconds = [t.seconds(tensor) for t in self.traffic]
        # The two last are what the negative indices mean.
        return np.min(np.array([*seconds, 0.0, inf])[self.ways], axis=0)

    def has_all_to_all(self) -> np.ndarray:
        """[states, states], whether one move is an all-to-all."""
        kinds = [traffic.kind == ALL_TO_ALL for traffic in self.traffic]
        return np.any(np.array([*kinds, False, False])[self.ways], axis=0)

    def moves(self, source: int, target: int) -> tuple[Traffic, ...]:
        """The moves from one state to another."""
        return tuple(self.traffic[k] for k in self.ways[:, source, target] if k >= 0)

    def cheapest_move(self, source: int, target: int, tensor: MovedTensor) -> Traffic:
        """The move whose seconds `weights` has at [source, target]."""
        return min(self.moves(source, target), key=lambda t: t.seconds(tensor))


def slice_price(mesh: DeviceMesh, local_bytes: int) -> Price:
    """The time to cut `local_bytes` out of a buffer: they are read and written once."""
    if mesh.table is not None:
        return mesh.table.traffic(2 * local_bytes)
    hardware = mesh.hardware
    moved = 2 * local_bytes / hardware.sustained_memory_bytes_per_second
    return Price(hardware.kernel_launch_seconds + moved, Provenance.ANALYTIC)


def transposed_seconds(
    mesh: DeviceMesh, axes: Iterable[int], dim: int, gathered_bytes: int
) -> float:
    """Seconds of the transpose before an all-gather of a dimension, or after a reduce-scatter, on
    devices whose collectives move only the first dimension; 0 on others."""
    if dim == 0 or not mesh.hardware.traits.gathers_first_dimension:
        return 0.0
    return slice_price(mesh, gathered_bytes // prod(mesh.shape[axis] for axis in axes)).seconds


@lru_cache(maxsize=1024)
def move_graph(mesh_shape: _Shape, pattern: DivisiblePattern) -> MoveGraph:
    """The graph for tensors of a divisibility pattern; cached, do not change it."""
    # Every even sharding, with every order of the axes within a dimension.
    states = tuple(
        TensorSharding(dims)
        for sharding in canonical_shardings(pattern)
        for dims in product(*(tuple(permutations(axes)) for axes in sharding.dims))
    )
    index = {state: i for i, state in enumerate(states)}
    numbers: dict[Traffic, int] = {}
    moves: dict[tuple[int, int], list[int]] = defaultdict(list)
    kinds = (_gathers, _slices, _all_to_alls, _permutes)
    for source, target, traffic in chain.from_iterable(k(mesh_shape, states) for k in kinds):
        # Moving axes to another dimension can lead to an uneven sharding: not a state.
        if target in index:
            number = numbers.setdefault(traffic, len(numbers))
            moves[index[source], index[target]].append(number)
    return MoveGraph(states, index, tuple(numbers), _ways(len(states), moves))


def _ways(count: int, moves: dict[tuple[int, int], list[int]]) -> np.ndarray:
    most = max((len(found) for found in moves.values()), default=1)
    ways = np.full((most, count, count), -1, dtype=np.int32)
    ways[0, range(count), range(count)] = -2
    for (source, target), found in moves.items():
        ways[: len(found), source, target] = found
    return ways


_Edges = Iterator[tuple[TensorSharding, TensorSharding, Traffic]]


def _gathers(mesh_shape: _Shape, states: Sequence[TensorSharding]) -> _Edges:
    for source in states:
        for dim, kept, dropped in _suffixes(source):
            target = _replace(source, {dim: kept})
            shards = target.shard_count(mesh_shape)
            axes = tuple(sorted(dropped))
            yield source, target, Traffic(ALL_GATHER, axes, shards, dim=min(dim, 1))


def _all_to_alls(mesh_shape: _Shape, states: Sequence[TensorSharding]) -> _Edges:
    for source in states:
        shards = source.shard_count(mesh_shape)
        for dim, kept, moved in _suffixes(source):
            for other in range(source.rank):
                if other != dim:
                    target = _replace(source, {dim: kept, other: source.dims[other] + moved})
                    pairs = zip(*(s.dim_shards(mesh_shape) for s in (source, target)), strict=True)
                    axes, pieces = tuple(sorted(moved)), tuple(map(max, pairs))
                    yield source, target, Traffic(ALL_TO_ALL, axes, shards, pieces=pieces)


def _slices(mesh_shape: _Shape, states: Sequence[TensorSharding]) -> _Edges:
    """Any refinement is one slice, over several dimensions at once if need be."""
    for target in states:
        shards = target.shard_count(mesh_shape)
        for lengths in product(*(range(len(axes) + 1) for axes in target.dims)):
            pairs = list(zip(target.dims, lengths, strict=True))
            added = tuple(sorted(chain.from_iterable(axes[n:] for axes, n in pairs)))
            if added:
                source = TensorSharding(tuple(axes[:n] for axes, n in pairs))
                yield source, target, Traffic(SLICE, added, shards)


def _permutes(mesh_shape: _Shape, states: Sequence[TensorSharding]) -> _Edges:
    """All pairs where every dimension of the target has a multiple of the source's pieces. Some
    devices already hold what they need; the time is that of the others."""
    by_shards: dict[_Shape, list[TensorSharding]] = defaultdict(list)
    for state in states:
        by_shards[state.dim_shards(mesh_shape)].append(state)
    digits = {state: _digits(mesh_shape, state) for state in states}
    for coarse, fine in product(by_shards, repeat=2):
        if all(b % a == 0 for a, b in zip(coarse, fine, strict=True)):
            for source, target in product(by_shards[coarse], by_shards[fine]):
                if not refines(target, source):  # Nothing, or a slice, does it already.
                    before, after = digits[source], digits[target]
                    axes = sorted(before.keys() | after.keys())
                    # Blocks move along the axes that choose another digit of a position.
                    moved = tuple(a for a in axes if before.get(a) != after.get(a))
                    traffic = Traffic(COLLECTIVE_PERMUTE, moved, prod(fine), coarse != fine)
                    yield source, target, traffic


def refines(fine: TensorSharding, coarse: TensorSharding) -> bool:
    """Whether `fine` appends axes to the dimensions of `coarse`, or is equal to it."""
    pairs = zip(fine.dims, coarse.dims, strict=True)
    return all(axes[: len(major)] == major for axes, major in pairs)


def _digits(mesh_shape: _Shape, sharding: TensorSharding) -> dict[int, tuple[int, int]]:
    """For each axis used, its dimension and the pieces of the dimension down to that axis.

    Two axes with the same digit cut the same way: the tensor positions that a device holds
    are written in mixed radix, one digit per axis, major first.
    """
    digits = {}
    for dim, axes in enumerate(sharding.dims):
        pieces = 1
        for axis in axes:
            pieces *= mesh_shape[axis]
            digits[axis] = (dim, pieces)
    return digits


def _suffixes(sharding: TensorSharding) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Each dimension, cut before each of its axes: (dimension, axes kept, axes behind)."""
    for dim, axes in enumerate(sharding.dims):
        for cut in range(len(axes)):
            yield dim, axes[:cut], axes[cut:]


def _replace(sharding: TensorSharding, changes: dict[int, tuple[int, ...]]) -> TensorSharding:
    return TensorSharding(tuple(changes.get(dim, axes) for dim, axes in enumerate(sharding.dims)))
