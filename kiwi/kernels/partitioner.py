"""Programs of XLA's partitioner that differ from what was asked for.

They were found by compiling (`python -m benchmarks.resharding`). The partitioner is the same on all
platforms:

(a) An operator leaves partial sums, and its result is constrained to one sharding. Axes that all go
to one dimension of the result are reduce-scattered if the compiler can do that
(`TargetFacts.scatters_sums`). Axes that go to several dimensions are all-reduced together and
sliced.

(b) A compiler without reduce-scatter all-reduces, once for each dimension, and slices.

(c) If an axis goes to a dimension that is cut already, and other partial sums are left or go
elsewhere, all are all-reduced together and sliced.

(d) A reshard of several moves may be compiled to worse ones, up to gathering the whole tensor.
Constraints at `ReshardingTable.waypoints` prevent it, and plans have them.

Not priced: if a mesh axis neither cuts an operand nor holds partial sums, XLA may cut the work
along it too, and bring the result in place by a collective-permute.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

from kiwi.mesh.collective_kinds import ALL_REDUCE, REDUCE_SCATTER
from kiwi.mesh.collectives import Collective, collective
from kiwi.mesh.device_mesh import DeviceMesh
from kiwi.mesh.moves import transposed_seconds
from kiwi.mesh.sharding import TensorSharding


def can_scatter(
    source: TensorSharding, partial: Iterable[int], scattered: Mapping[int, int]
) -> bool:
    """Whether partial sums can be reduce-scattered, by rules (a) and (c).

    For the arguments see `reduction_collectives`.
    """
    dims = set(scattered.values())
    all_go = set(partial) <= set(scattered)
    return len(dims) == 1 and (all_go or not any(source.dims[dim] for dim in dims))


def reduction_collectives(
    mesh: DeviceMesh,
    source: TensorSharding,
    partial: Iterable[int],
    scattered: Mapping[int, int],
    partial_bytes: int,
    scatters_sums: bool,
    *,
    least_share: float = 1.0,
) -> tuple[Collective, ...]:
    """The collectives that reduce an operator's partial sums, by rules (a) to (c).

    - `source`: how the partial sums are laid out.
    - `partial`: the mesh axes along which each device holds a summand.
    - `scattered`: for some of them, the dimension of the result that they cut.
    - `partial_bytes`: one device's partial sums.
    - `scatters_sums`: whether the compiler does over these axes.
    - `least_share`: as `kiwi.mesh.collectives.collective`'s.
    """
    move = functools.partial(collective, least_share=least_share)
    unscattered = sorted(set(partial) - set(scattered))
    axes_of_dim: dict[int, list[int]] = defaultdict(list)
    for axis, dim in sorted(scattered.items()):
        axes_of_dim[dim].append(axis)
    if (len(axes_of_dim) > 1 or unscattered) and any(source.dims[dim] for dim in axes_of_dim):
        return (move(ALL_REDUCE, mesh, {*partial, *scattered}, partial_bytes),)
    moves = []
    if not scatters_sums:
        moves += [move(ALL_REDUCE, mesh, axes, partial_bytes) for axes in axes_of_dim.values()]
    elif scattered:
        kind = REDUCE_SCATTER if can_scatter(source, partial, scattered) else ALL_REDUCE
        moved = move(kind, mesh, scattered, partial_bytes)
        if kind == REDUCE_SCATTER:
            (dim,) = axes_of_dim
            more = transposed_seconds(mesh, scattered, dim, partial_bytes)
            moved = replace(moved, seconds=moved.seconds + more)
        moves.append(moved)
    # The rest is all-reduced after the cut, and so smaller.
    if unscattered:
        left_bytes = partial_bytes // prod(mesh.shape[axis] for axis in scattered)
        moves.append(move(ALL_REDUCE, mesh, unscattered, left_bytes))
    return tuple(moves)
