"""The cheapest chain from partial sums to a sharding, as an extension of `kiwi.mesh.resharding`.

Two moves turn a tensor of partial sums along some mesh axes into a whole one:

- *all-reduce* over some of these axes, which leaves the layout unchanged;
- *reduce-scatter* over some of them, which appends them at the minor end of one dimension.

No move leads back to partial sums. A partial sum is neither gathered nor cut, because a partitioned
program has no name for the result. The cheapest chain from partial sums is therefore a recursion
over the sets of axes left, and ends in the shortest paths between shardings.

An operator whose result is constrained to one sharding is compiled to one reduction and not to a
chain; see `kiwi.kernels.partitioner`.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations

from kiwi.errors import ShardingConflictError
from kiwi.mesh.collective_kinds import ALL_REDUCE, REDUCE_SCATTER
from kiwi.mesh.moves import Traffic
from kiwi.mesh.resharding import ReshardingStep, ReshardingTable
from kiwi.mesh.sharding import TensorSharding

_Axes = tuple[int, ...]
_Move = tuple[Traffic, TensorSharding, _Axes]


def reduction_path(
    table: ReshardingTable, source: TensorSharding, partial: Iterable[int], target: TensorSharding
) -> tuple[ReshardingStep, ...]:
    """Returns the cheapest chain of moves from partial sums to `target`.

    **Arguments:**

    - `table`: the tensor and its mesh.
    - `source`: the layout of the partial sums over the other axes.
    - `partial`: the mesh axes along which every device holds a different summand.

    **Raises:** `ShardingConflictError` if a partial axis also cuts the tensor, or a sharding does
    not fit it.
    """
    source = source.without_trivial_axes(table.mesh.shape)
    sizes = table.mesh.shape
    axes = tuple(sorted(axis for axis in set(partial) if sizes[axis] > 1))
    if set(axes) & set(source.axes_used):
        raise ShardingConflictError(
            f"Partial sums along axes {axes} cannot be cut along them: {source.dims}.",
            cause="Along such an axis each device holds a summand of the same elements.",
        )

    @cache
    def best(state: TensorSharding, left: _Axes) -> tuple[float, _Move | None]:
        """Returns the seconds from a state to the target, and the first move; None for the move if
        no sums are left."""
        if not left:
            return table.seconds(state, target), None
        return min(
            (
                (traffic.seconds(table.moved) + best(after, rest)[0], move)
                for move in _moves(table, state, left)
                for traffic, after, rest in [move]
            ),
            key=lambda pair: pair[0],
        )

    steps, state = [], source
    while (move := best(state, axes)[1]) is not None:
        traffic, after, axes = move
        steps.append(ReshardingStep.of(traffic, table.moved, state, after))
        state = after
    return (*steps, *table.path(state, target))


def _moves(table: ReshardingTable, state: TensorSharding, left: _Axes) -> Iterator[_Move]:
    """Yields the moves from a state: traffic, the sharding after it, and the axes that are still
    partial."""
    shards = state.shard_count(table.mesh.shape)
    for count in range(len(left), 0, -1):
        for axes in combinations(left, count):
            rest = tuple(axis for axis in left if axis not in axes)
            yield Traffic(ALL_REDUCE, axes, shards), state, rest
            for dim, before in enumerate(state.dims):
                dims = (*state.dims[:dim], (*before, *axes), *state.dims[dim + 1 :])
                after = TensorSharding(dims)
                if after.divides(table.shape, table.mesh.shape):
                    yield Traffic(REDUCE_SCATTER, axes, shards), after, rest
