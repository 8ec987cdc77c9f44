"""MAP's heuristic search for a chain of moves between two shardings, for comparison.

Liu et al., *MAP: Memory-aware Automated Intra-op Parallel Training For Foundation Models*, 2023,
section 4.3, algorithm 1. The search starts at the source. Of all shardings that are one transform
away it takes the one that differs least from the target, until it reaches the target. A transform
gathers or cuts one axis at the minor end of a dimension, or moves an axis to the minor end of
another dimension by an all-to-all. The difference between two shardings is a count of the
operations that each dimension still needs, not a time: it depends neither on sizes nor on links.
"""

from collections.abc import Iterator

from kiwi.mesh.moves import divisible_pattern, move_graph
from kiwi.mesh.resharding import ReshardingStep, ReshardingTable
from kiwi.mesh.sharding import TensorSharding

# The paper gives "a larger cost to the all-gather", and a penalty if one operation is not enough.
_GATHER_COST = 3.0
_SHARD_COST = 1.0
_STEP_PENALTY = 1.0


def greedy_path(
    table: ReshardingTable, source: TensorSharding, target: TensorSharding
) -> tuple[ReshardingStep, ...]:
    """Returns the moves of the heuristic. Their seconds add up to at least the time of the cheapest
    chain.

    The search ends: it can always gather an axis that is not in the target's place, or cut where
    none is, and both reduce the difference from the target.

    **Raises:** `ShardingConflictError` if a sharding does not fit the tensor.
    """
    for sharding in (source, target):
        sharding.check(table.shape, table.mesh.shape)
    sizes = table.mesh.shape
    state, target = source.without_trivial_axes(sizes), target.without_trivial_axes(sizes)
    steps = []
    while state != target:
        after = min(_transforms(table, state), key=lambda s: (_difference(s, target), s))
        steps.append(_single_move(table, state, after))
        state = after
    return tuple(steps)


def _single_move(
    table: ReshardingTable, source: TensorSharding, target: TensorSharding
) -> ReshardingStep:
    """Returns the cheapest single move between neighbouring shardings."""
    graph = move_graph(table.mesh.shape, divisible_pattern(table.shape, table.mesh))
    traffic = graph.cheapest_move(graph.index[source], graph.index[target], table.moved)
    return ReshardingStep.of(traffic, table.moved, source, target)


def _transforms(table: ReshardingTable, state: TensorSharding) -> Iterator[TensorSharding]:
    used = state.axes_used
    for dim, axes in enumerate(state.dims):
        if axes:
            yield _with(state, {dim: axes[:-1]})
        appended = [{dim: (*axes, axis)} for axis in table.mesh.nontrivial_axes if axis not in used]
        appended += [
            {dim: (*axes, moved[-1]), other: moved[:-1]}
            for other, moved in enumerate(state.dims)
            if other != dim and moved
        ]
        for changes in appended:
            neighbour = _with(state, changes)
            if neighbour.divides(table.shape, table.mesh.shape):
                yield neighbour


def _with(state: TensorSharding, changes: dict[int, tuple[int, ...]]) -> TensorSharding:
    return TensorSharding(tuple(changes.get(dim, axes) for dim, axes in enumerate(state.dims)))


def _difference(state: TensorSharding, target: TensorSharding) -> float:
    return sum(_dim_difference(a, b) for a, b in zip(state.dims, target.dims, strict=True))


def _dim_difference(axes: tuple[int, ...], wanted: tuple[int, ...]) -> float:
    """Returns the cost of gathers down to the common major axes, and of cuts after them."""
    common = 0
    while common < min(len(axes), len(wanted)) and axes[common] == wanted[common]:
        common += 1
    gathers, cuts = len(axes) - common, len(wanted) - common
    penalty = _STEP_PENALTY * max(gathers + cuts - 1, 0)
    return _GATHER_COST * gathers + _SHARD_COST * cuts + penalty
