"""The graph of single moves between the shardings of a tensor.

The states are all even shardings of the tensor, with every order of the mesh axes within a
dimension. There are four kinds of moves:

- *all-gather*: one or several minor-most axes of one dimension are dropped.
- *slice*: axes are appended at the minor end of dimensions. Each device cuts its part out of its
  buffer, which is memory traffic without communication.
- *all-to-all*: one or several minor-most axes of one dimension move to the minor end of another.
- *collective-permute*: the target cuts every dimension into as many pieces as the source, or a
  multiple. Each device cuts a part out of its buffer, and the parts are exchanged. This move always
  exists, since as many devices hold a block of the source as need parts of it.

A fifth kind, the *reduce-scatter*, leads from partial sums to a state. No move leads back.

The moves depend on the shape of the mesh and on the axes that cut each dimension evenly. One graph
therefore serves all tensors of a pattern, whatever the links. The cost of a move depends only on
its `Traffic` and on the bytes of the tensor. Many moves share one `Traffic`.
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
    """Returns, for each dimension of a tensor of `shape`, the sets of mesh axes that cut it evenly.

    Two shapes with the same pattern have the same shardings. Axes of size 1 are left out.
    """
    axes = mesh.nontrivial_axes
    subsets = [subset for count in range(len(axes) + 1) for subset in combinations(axes, count)]
    return tuple(
        tuple(subset for subset in subsets if size % prod(mesh.shape[axis] for axis in subset) == 0)
        for size in shape
    )


def enumerate_shardings(shape: Sequence[int], mesh: DeviceMesh) -> list[TensorSharding]:
    """Returns all even shardings of a tensor of `shape`, in a fixed order, replicated first.

    Several mesh axes that split one dimension appear in increasing order only. Axes of size 1 are
    not used, because they change nothing.
    """
    return canonical_shardings(divisible_pattern(shape, mesh))


def canonical_shardings(pattern: DivisiblePattern) -> list[TensorSharding]:
    """Returns the shardings of `enumerate_shardings` for the pattern of a shape."""
    choices = sorted(_choices(pattern), key=lambda dims: (sum(map(len, dims)), dims))
    return [TensorSharding(dims) for dims in choices]


def _choices(pattern: DivisiblePattern) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yields all choices of one set of axes per dimension that use no axis twice."""
    if not pattern:
        yield ()
        return
    for later_dims in _choices(pattern[1:]):
        used_axes = {axis for axes in later_dims for axis in axes}
        for axes in pattern[0]:
            if not used_axes.intersection(axes):
                yield (axes, *later_dims)


@dataclass(frozen=True)
class MovedTensor:
    """A tensor that is resharded over a mesh.

    - `bytes`: the bytes of the whole tensor.
    - `least_share`: as in `collective`, for all-gathers.
    - `shape`: the shape of the whole tensor if tiles matter, else None.
    """

    mesh: DeviceMesh
    bytes: int
    least_share: float = 1.0
    shape: _Shape | None = None


@dataclass(frozen=True)
class Traffic:
    """The properties of a move that determine its time, together with the tensor.

    - `kind`: an HLO opcode, or `SLICE`.
    - `axes`: the mesh axes that the move runs over, increasing; the appended axes of a slice.
    - `shards`: the time follows from a buffer of the tensor's bytes over `shards`.
    - `cuts_first`: whether each device first cuts the part that it sends out of a larger buffer.
    - `dim`: 0 for an all-gather of the first dimension, 1 for an all-gather of another.
    - `pieces`: for an all-to-all, the number of pieces of each dimension while they are sent.
    """

    kind: str
    axes: tuple[int, ...]
    shards: int
    cuts_first: bool = False
    dim: int = 0
    pieces: _Shape = ()

    def seconds(self, tensor: MovedTensor) -> float:
        """Returns the time of the move for a tensor."""
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
        """Returns the seconds of the copies around an all-to-all: one copy before or after it. If
        the tiles of the pieces have padding, which is not sent, there are five copies."""
        cut = tuple(size // n for size, n in zip(shape or (), self.pieces, strict=False))
        padding = buffer_elements(cut) / prod(cut) if prod(cut) else 1.0
        copies = 5 * padding if padding > 1 else 1
        return copies * slice_price(mesh, moved_bytes).seconds


@dataclass(frozen=True, eq=False)
class MoveGraph:
    """All states and moves for one mesh shape and one divisibility pattern.

    - `states`: the shardings. `index` is the inverse.
    - `traffic`: the distinct traffics of all moves.
    - `ways`: int32, shape [ways, states, states]: for each pair of states, the indices in `traffic`
      of the moves between them; -1 for no further move, -2 on the diagonal.
    """

    states: tuple[TensorSharding, ...]
    index: dict[TensorSharding, int]
    traffic: tuple[Traffic, ...]
    ways: np.ndarray

    def weights(self, tensor: MovedTensor) -> np.ndarray:
        """Returns the seconds of the cheapest single move between each pair of states, shape
        [states, states]; 0 on the diagonal, infinity without a move."""
        seconds = [traffic.seconds(tensor) for traffic in self.traffic]
        # The indices -2 and -1 select the two last entries.
        return np.min(np.array([*seconds, 0.0, inf])[self.ways], axis=0)

    def has_all_to_all(self) -> np.ndarray:
        """Returns whether a move between each pair of states is an all-to-all, shape [states,
        states]."""
        kinds = [traffic.kind == ALL_TO_ALL for traffic in self.traffic]
        return np.any(np.array([*kinds, False, False])[self.ways], axis=0)

    def moves(self, source: int, target: int) -> tuple[Traffic, ...]:
        """Returns the moves from state `source` to state `target`."""
        return tuple(self.traffic[k] for k in self.ways[:, source, target] if k >= 0)

    def cheapest_move(self, source: int, target: int, tensor: MovedTensor) -> Traffic:
        """Returns the cheapest move from the layout `source` to the layout `target`, by their
        indices. `weights` holds its seconds."""
        return min(self.moves(source, target), key=lambda traffic: traffic.seconds(tensor))


def slice_price(mesh: DeviceMesh, local_bytes: int) -> Price:
    """Returns the time of a kernel that cuts `local_bytes` out of a buffer, which reads and writes
    them once."""
    if mesh.table is not None:
        return mesh.table.traffic(2 * local_bytes)
    hardware = mesh.hardware
    moved = 2 * local_bytes / hardware.sustained_memory_bytes_per_second
    return Price(hardware.kernel_launch_seconds + moved, Provenance.ANALYTIC)


def transposed_seconds(
    mesh: DeviceMesh, axes: Iterable[int], dim: int, gathered_bytes: int
) -> float:
    """Returns the seconds of the transpose around an all-gather or a reduce-scatter of dimension
    `dim` over `axes`, on devices whose collectives move only the first dimension; 0 on others.

    - `gathered_bytes`: the larger buffer of one device.
    """
    if dim == 0 or not mesh.hardware.traits.gathers_first_dimension:
        return 0.0
    return slice_price(mesh, gathered_bytes // prod(mesh.shape[axis] for axis in axes)).seconds


@lru_cache(maxsize=1024)
def move_graph(mesh_shape: _Shape, pattern: DivisiblePattern) -> MoveGraph:
    """Returns the graph for tensors of a divisibility pattern. It is cached and must not be
    changed."""
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
    for source, target, traffic in chain.from_iterable(
        moves_of_kind(mesh_shape, states) for moves_of_kind in kinds
    ):
        # An all-to-all may lead to an uneven sharding, which is no state.
        if target in index:
            number = numbers.setdefault(traffic, len(numbers))
            moves[index[source], index[target]].append(number)
    return MoveGraph(states, index, tuple(numbers), _ways(len(states), moves))


def _ways(count: int, moves: dict[tuple[int, int], list[int]]) -> np.ndarray:
    most = max((len(numbers) for numbers in moves.values()), default=1)
    ways = np.full((most, count, count), -1, dtype=np.int32)
    ways[0, range(count), range(count)] = -2
    for (source, target), numbers in moves.items():
        ways[: len(numbers), source, target] = numbers
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
            for target_dim in range(source.rank):
                if target_dim != dim:
                    target = _replace(
                        source, {dim: kept, target_dim: source.dims[target_dim] + moved}
                    )
                    pairs = zip(
                        *(sharding.dim_shards(mesh_shape) for sharding in (source, target)),
                        strict=True,
                    )
                    axes, pieces = tuple(sorted(moved)), tuple(map(max, pairs))
                    yield source, target, Traffic(ALL_TO_ALL, axes, shards, pieces=pieces)


def _slices(mesh_shape: _Shape, states: Sequence[TensorSharding]) -> _Edges:
    """Yields one slice for each sharding and each refinement of it. A slice may cut several
    dimensions."""
    for target in states:
        shards = target.shard_count(mesh_shape)
        for lengths in product(*(range(len(axes) + 1) for axes in target.dims)):
            pairs = list(zip(target.dims, lengths, strict=True))
            added = tuple(sorted(chain.from_iterable(axes[n:] for axes, n in pairs)))
            if added:
                source = TensorSharding(tuple(axes[:n] for axes, n in pairs))
                yield source, target, Traffic(SLICE, added, shards)


def _permutes(mesh_shape: _Shape, states: Sequence[TensorSharding]) -> _Edges:
    """Yields a collective-permute for each pair of states in which every dimension of the target
    has a multiple of the source's pieces. The time counts devices that do not yet hold
    their target block."""
    by_shards: dict[_Shape, list[TensorSharding]] = defaultdict(list)
    for state in states:
        by_shards[state.dim_shards(mesh_shape)].append(state)
    digits = {state: _digits(mesh_shape, state) for state in states}
    for coarse, fine in product(by_shards, repeat=2):
        if all(b % a == 0 for a, b in zip(coarse, fine, strict=True)):
            for source, target in product(by_shards[coarse], by_shards[fine]):
                if not refines(target, source):  # Otherwise no move, or a slice, suffices.
                    before, after = digits[source], digits[target]
                    axes = sorted(before.keys() | after.keys())
                    # Blocks move along the axes whose digit of a position changes.
                    moved = tuple(a for a in axes if before.get(a) != after.get(a))
                    traffic = Traffic(COLLECTIVE_PERMUTE, moved, prod(fine), coarse != fine)
                    yield source, target, traffic


def refines(fine: TensorSharding, coarse: TensorSharding) -> bool:
    """Whether `fine` appends axes to the dimensions of `coarse`, or is equal to it."""
    pairs = zip(fine.dims, coarse.dims, strict=True)
    return all(axes[: len(major)] == major for axes, major in pairs)


def _digits(mesh_shape: _Shape, sharding: TensorSharding) -> dict[int, tuple[int, int]]:
    """Returns the digit of each axis used: its dimension, and the number of pieces of the dimension
    down to that axis.

    The tensor positions that a device holds are numbers in mixed radix, with one digit per axis,
    major first. Two axes with the same digit cut the tensor in the same way.
    """
    digits = {}
    for dim, axes in enumerate(sharding.dims):
        pieces = 1
        for axis in axes:
            pieces *= mesh_shape[axis]
            digits[axis] = (dim, pieces)
    return digits


def _suffixes(sharding: TensorSharding) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Yields each dimension with each way to drop minor axes: (dimension, axes kept, axes
    dropped)."""
    for dim, axes in enumerate(sharding.dims):
        for cut in range(len(axes)):
            yield dim, axes[:cut], axes[cut:]


def _replace(sharding: TensorSharding, changes: dict[int, tuple[int, ...]]) -> TensorSharding:
    return TensorSharding(tuple(changes.get(dim, axes) for dim, axes in enumerate(sharding.dims)))
