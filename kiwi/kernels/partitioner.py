"""Collectives of XLA's partitioner that differ from the requested ones.

`python -m benchmarks.resharding` shows them in compiled programs. The partitioner is the same on
all platforms.

An operator leaves partial sums along mesh axes, and its result is constrained to a sharding. An
axis *goes to* the dimension of the result that it cuts:

(a) If all axes go to the same dimension, the partial sums are reduce-scattered, provided that the
compiler can do this (`TargetFacts.scatters_sums`). If axes go to several dimensions, the partial
sums are all-reduced together and sliced.

(b) A compiler without reduce-scatter all-reduces once for each dimension, and slices.

(c) If an axis goes to a dimension that is cut already, and other axes go to another dimension or to
none, the partial sums are all-reduced along all axes together and sliced.

(d) A reshard of several moves may be compiled to worse moves, up to a gather of the whole tensor.
Plans prevent this by constraints at `ReshardingTable.waypoints`.

One behaviour is not priced: if a mesh axis neither cuts an operand nor holds partial sums, XLA may
cut the work along this axis too, and move the result by a collective-permute.
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

    The parameters are the ones of `reduction_collectives`.
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
    """Returns the collectives that reduce an operator's partial sums, by rules (a) to (c).

    - `source`: the layout of the partial sums.
    - `partial`: the mesh axes along which each device holds a summand.
    - `scattered`: mesh axis → the dimension of the result that it cuts, for some axes of `partial`.
    - `partial_bytes`: the bytes of one device's partial sums.
    - `scatters_sums`: whether the compiler reduce-scatters over these axes.
    - `least_share`: as in `kiwi.mesh.collectives.collective`.
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
    # The other axes are all-reduced after the cut, and so move fewer bytes.
    if unscattered:
        left_bytes = partial_bytes // prod(mesh.shape[axis] for axis in scattered)
        moves.append(move(ALL_REDUCE, mesh, unscattered, left_bytes))
    return tuple(moves)
