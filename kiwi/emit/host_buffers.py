"""Buffers in host memory whose elements the emitted program writes and reads.

Each device writes and reads its own part of a value, and has its own token (`kiwi.emit.context`). A
part is a matrix, and a buffer consists of the matrices of its elements one below the other: XLA:TPU
copies slices of one dimension only. A buffer has at least two elements (`LEAST_ELEMENTS`).
"""

from collections.abc import Sequence
from math import gcd, prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from kiwi.emit.context import Context
from kiwi.hlo.host_memory import HOST_MEMORY, LEAST_ELEMENTS
from kiwi.mesh import TensorSharding
from kiwi.mesh.tiles import default_order

_TILE_ROWS, _TILE_COLUMNS = 8, 1024
"""The sizes of what is read back: a tile of XLA:TPU, and a part of a vector without columns."""


def empty_buffer(context: Context, layout: TensorSharding, elements: int, like: Any) -> Any:
    """An empty buffer for so many elements of an array's shape and type in a layout: [devices *
    elements * rows, columns]."""
    rows, columns = _matrix(_local_shape(context, layout, like.shape))
    all_rows = context.execution.mesh.size * max(elements, LEAST_ELEMENTS) * rows
    empty = jnp.zeros((all_rows, columns), like.dtype)
    on_host = NamedSharding(context.jax_mesh, _by_device(context), memory_kind=HOST_MEMORY)
    return jax.device_put(empty, on_host)


def written(
    context: Context, layout: TensorSharding, buffer: Any, array: Any, index: Any, token: Any
) -> tuple[Any, Any]:
    """The buffer with an array written to one of its elements, and the token of the finished copy:
    [devices].

    `index` is that of the element. If there is a token of an earlier copy, XLA knows the index only
    after that copy.
    """

    def write(buffer: Any, part: Any, index: Any, token: Any) -> tuple[Any, Any]:
        rows, columns = _matrix(part.shape)
        start = (index + _zero_behind(token)) * rows
        element = jax.device_put(part.reshape(rows, columns), jax.memory.Space.Host)
        buffer = lax.dynamic_update_slice(buffer, element, (start, 0))
        few = lax.dynamic_slice(buffer, (start, 0), (min(rows, _TILE_ROWS), columns))
        return buffer, jnp.max(jax.device_put(few, jax.memory.Space.Device))[None]

    mine, spec = _by_device(context), context.execution.mesh.partition_spec(layout)
    run = context.on_each_device(write, (mine, spec, P(), mine), (mine, mine))
    return run(buffer, array, index, token)


def element(
    context: Context, layout: TensorSharding, shape: Sequence[int], buffer: Any, index: Any
) -> Any:
    """An element of a buffer on the device: an array of a shape in a layout."""
    local = _local_shape(context, layout, shape)

    def read(buffer: Any, index: Any) -> Any:
        rows, columns = _matrix(local)
        part = lax.dynamic_slice(buffer, (index * rows, 0), (rows, columns))
        return jax.device_put(part, jax.memory.Space.Device).reshape(local)

    spec = context.execution.mesh.partition_spec(layout)
    return context.on_each_device(read, (_by_device(context), P()), spec)(buffer, index)


def is_paced(context: Context, layout: TensorSharding, shape: Sequence[int]) -> bool:
    """Whether an argument or result in host memory is copied half by half, as `fetched` does."""
    is_whole = _halved_dimension(_local_shape(context, layout, shape)) is None
    return context.execution.facts.hoists_copies and not is_whole


def fetched(context: Context, layout: TensorSharding, array: Any, zero: Any) -> Any:
    """An array in host memory, copied to the device in two halves, since XLA chooses when a whole
    array's copy begins. `zero` is a zero that XLA knows only when the copy may begin."""

    def read(part: Any, zero: Any) -> Any:
        cut, half = _half(part.shape)
        starts = (zero, zero + half)
        halves = (lax.dynamic_slice_in_dim(part, start, half, cut) for start in starts)
        moved = [jax.device_put(h, jax.memory.Space.Device) for h in halves]
        return _in_order(jnp.concatenate(moved, cut))

    spec = context.execution.mesh.partition_spec(layout)
    return context.on_each_device(read, (spec, P()), spec)(array, zero)


def stored(
    context: Context, layout: TensorSharding, buffer: Any, array: Any, token: Any
) -> tuple[Any, Any]:
    """An array copied to the host, in the memory of `buffer`, and the token of its copy. The copy
    does not begin before the earlier copy with `token`."""

    def write(buffer: Any, part: Any, token: Any) -> tuple[Any, Any]:
        cut, half = _half(part.shape)
        zero, part = _zero_behind(token), _in_order(part)
        for start in (0, half):
            piece = lax.slice_in_dim(part, start, start + half, axis=cut)
            on_host = jax.device_put(piece, jax.memory.Space.Host)
            buffer = lax.dynamic_update_slice_in_dim(buffer, on_host, start + zero, cut)
        few = min(half, _tile(part.shape, cut))
        last = lax.dynamic_slice_in_dim(buffer, 2 * half - few + zero, few, cut)
        return buffer, jnp.max(jax.device_put(last, jax.memory.Space.Device))[None]

    mine, spec = _by_device(context), context.execution.mesh.partition_spec(layout)
    return context.on_each_device(write, (spec, spec, mine), (spec, mine))(buffer, array, token)


def row_major(part: Any) -> Any:
    """An array in this order."""
    return with_layout_constraint(part, Layout(tuple(range(part.ndim))))


def _in_order(part: Any) -> Any:
    """An array in the order of an argument. XLA would otherwise transpose it for its reader, even
    in host memory."""
    return with_layout_constraint(part, Layout(default_order(part.shape)))


def _half(local: Sequence[int]) -> tuple[int, int]:
    cut = _halved_dimension(local)
    assert cut is not None
    return cut, local[cut] // 2


def _halved_dimension(local: Sequence[int]) -> int | None:
    """The first dimension of which both halves are whole tiles."""
    found = (d for d, extent in enumerate(local) if extent % (2 * _tile(local, d)) == 0)
    return next(found, None)


def _tile(local: Sequence[int], dimension: int) -> int:
    place = default_order(local)[::-1].index(dimension)
    return (_TILE_COLUMNS, _TILE_ROWS)[place] if place < 2 else 1


def _local_shape(context: Context, layout: TensorSharding, shape: Sequence[int]) -> tuple[int, ...]:
    return layout.local_shape(shape, context.execution.mesh.shape)


def _matrix(local: Sequence[int]) -> tuple[int, int]:
    columns = local[-1] if len(local) > 1 else gcd(local[0], _TILE_COLUMNS)
    return prod(local) // columns, columns


def _zero_behind(token: Any) -> Any:
    """Zero, as an int32 that XLA knows only after a token [1]."""
    unknown = lax.optimization_barrier(jnp.uint32(0))
    return jnp.minimum(lax.convert_element_type(token[0], jnp.uint32), unknown).astype(jnp.int32)


def _by_device(context: Context) -> P:
    """A view of an array of which each device has its part of the first dimension."""
    return P(context.jax_mesh.axis_names)
