"""The sharding of a tensor over a device mesh."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import TYPE_CHECKING

from kiwi.errors import ShardingConflictError
from kiwi.messages import topics

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


@dataclass(frozen=True, order=True)
class TensorSharding:
    """The mesh axes that shard each dimension of a tensor.

    `dims[d]` lists, major to minor, the indices of the mesh axes that split dimension `d`. It is
    empty if the dimension is not split. Devices along a mesh axis that splits no dimension hold
    copies.

    **Raises:** `ShardingConflictError` if a mesh axis occurs twice or is negative.
    """

    dims: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        axes = list(chain.from_iterable(self.dims))
        if len(set(axes)) != len(axes):
            raise ShardingConflictError(
                f"Sharding {self.dims} uses a mesh axis more than once.",
                topic=topics.AXIS_TWICE,
            )
        if any(axis < 0 for axis in axes):
            raise ShardingConflictError(
                f"Sharding {self.dims} has a negative mesh axis.",
                topic=topics.OTHER_TENSOR,
                cause="Mesh axes are counted from 0; indices from the end are not understood.",
            )

    def __hash__(self) -> int:
        # Cached, because shardings are keys of many look-ups.
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self.dims)

    @classmethod
    def replicated(cls, rank: int) -> "TensorSharding":
        """Returns the sharding of a tensor of this rank with which every device holds all of it."""
        return cls(((),) * rank)

    @property
    def rank(self) -> int:
        """The number of dimensions of the tensor."""
        return len(self.dims)

    @property
    def axes_used(self) -> tuple[int, ...]:
        """The mesh axes that split some dimension, in increasing order."""
        return tuple(sorted(chain.from_iterable(self.dims)))

    def dim_shards(self, mesh_shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the number of pieces of each dimension.

        **Raises:** `ShardingConflictError` if the mesh has too few axes.
        """
        return _dim_shards(self, tuple(mesh_shape))

    def local_shape(self, shape: Sequence[int], mesh_shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of one device's shard of a tensor of `shape`.

        **Raises:** as `dim_shards`.
        """
        pairs = zip(shape, self.dim_shards(mesh_shape), strict=True)
        return tuple(size // count for size, count in pairs)

    def shard_count(self, mesh_shape: Sequence[int]) -> int:
        """Returns the number of distinct shards: the size of the tensor over the size of a
        shard."""
        return _shard_count(self, tuple(mesh_shape))

    def divides(self, shape: Sequence[int], mesh_shape: Sequence[int]) -> bool:
        """Whether a tensor of `shape` has this rank and is cut into equal shards."""
        try:
            self.check(shape, mesh_shape)
        except ShardingConflictError:
            return False
        return True

    def without_trivial_axes(self, mesh_shape: Sequence[int]) -> "TensorSharding":
        """Returns the sharding without the mesh axes of size 1."""
        self._check_axes(mesh_shape)
        return TensorSharding(
            tuple(tuple(axis for axis in axes if mesh_shape[axis] > 1) for axes in self.dims)
        )

    def check(self, shape: Sequence[int], mesh_shape: Sequence[int]) -> None:
        """Checks that the sharding cuts a tensor of `shape` into equal shards.

        **Raises:** `ShardingConflictError` if the rank differs, the mesh has too few axes, or a
        dimension is not cut evenly.
        """
        if len(shape) != self.rank:
            raise ShardingConflictError(
                f"Sharding {self.dims} has {self.rank} dimensions, shape {tuple(shape)} has "
                f"{len(shape)}.",
                topic=topics.OTHER_TENSOR,
                cause="The sharding belongs to another tensor.",
            )
        for dim, (size, count) in enumerate(zip(shape, self.dim_shards(mesh_shape), strict=True)):
            if size % count:
                raise ShardingConflictError(
                    f"Dimension {dim} of shape {tuple(shape)} cannot be cut into {count} equal "
                    f"pieces on a mesh of {tuple(mesh_shape)}.",
                    topic=topics.UNEVEN,
                )

    def named(self, axis_names: Sequence[str]) -> list[tuple[str, ...]]:
        """Returns, for each dimension, the names of the mesh axes that split it.

        **Raises:** `ShardingConflictError` if the mesh has too few axes.
        """
        self._check_axes(axis_names)
        return [tuple(axis_names[axis] for axis in axes) for axes in self.dims]

    @classmethod
    def from_partition_spec(
        cls, spec: "PartitionSpec", rank: int, axis_names: Sequence[str]
    ) -> "TensorSharding":
        """Returns the sharding that a `PartitionSpec` describes. Dimensions without an entry are
        not split.

        **Raises:** `ShardingConflictError` if the spec is longer than `rank`, names an axis that
        the mesh lacks or one axis twice, or is not definite (`UNCONSTRAINED`, unreduced axes).
        """
        if len(spec) > rank:
            raise ShardingConflictError(
                f"{spec} has {len(spec)} entries, the tensor has {rank} dimensions.",
                topic=topics.TOO_MANY_ENTRIES,
                suggestion=f"Give at most {rank} entries.",
            )
        if getattr(spec, "unreduced", None):
            raise ShardingConflictError(
                f"{spec} has unreduced axes.",
                topic=topics.UNREDUCED,
            )
        dims = [_entry_axes(entry, spec, axis_names) for entry in spec]
        return cls(tuple(dims) + ((),) * (rank - len(dims)))

    def _check_axes(self, mesh_axes: Sequence[object]) -> None:
        """Raises `ShardingConflictError` if the mesh lacks an axis. `mesh_axes`: one item per mesh
        axis."""
        if any(axis >= len(mesh_axes) for axis in chain.from_iterable(self.dims)):
            raise ShardingConflictError(
                f"Sharding {self.dims} uses mesh axis {self.axes_used[-1]}, but the mesh "
                f"{tuple(mesh_axes)} has {len(mesh_axes)} axes.",
                topic=topics.OTHER_TENSOR,
                cause="The sharding belongs to another mesh.",
            )


@functools.lru_cache(maxsize=2**14)
def _dim_shards(sharding: TensorSharding, mesh_shape: tuple[int, ...]) -> tuple[int, ...]:
    sharding._check_axes(mesh_shape)
    return tuple(prod(mesh_shape[axis] for axis in axes) for axes in sharding.dims)


@functools.lru_cache(maxsize=2**14)
def _shard_count(sharding: TensorSharding, mesh_shape: tuple[int, ...]) -> int:
    return prod(_dim_shards(sharding, mesh_shape))


def _entry_axes(entry: object, spec: object, axis_names: Sequence[str]) -> tuple[int, ...]:
    if entry is None:
        return ()
    names = entry if isinstance(entry, tuple) else (entry,)
    for name in names:
        if not isinstance(name, str):
            raise ShardingConflictError(
                f"{spec} has the entry {name!r}.",
                topic=topics.SPEC_ENTRY,
            )
        if name not in axis_names:
            raise ShardingConflictError(
                f"{spec} names the axis {name!r}; the mesh has {tuple(axis_names)}.",
                topic=topics.UNKNOWN_AXIS,
            )
    return tuple(list(axis_names).index(str(name)) for name in names)


def layout_text(dims: Sequence[Sequence[str]]) -> str:
    """Returns a text such as `[x, -, (y, z)]`. `dims`: the names of the axes that split each
    dimension."""
    texts = [
        "-" if not names else names[0] if len(names) == 1 else f"({', '.join(names)})"
        for names in dims
    ]
    return "[" + ", ".join(texts) + "]"
