"""Buffers in host memory whose elements the emitted program writes and reads.

Each device writes and reads its own shard of a value, and has its own token. A *token* is a value
that the program knows only when a copy to the host has ended (`kiwi.emit.context`). A shard is
stored as a matrix. A buffer has the matrices of its elements one below the other, since XLA:TPU
copies slices along one dimension only. A buffer has at least `LEAST_ELEMENTS` elements.
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
"""The size of a tile. Halves of a shard consist of whole tiles. At most one tile of the last copied
rows is read back for the token. A vector is stored as a matrix of at most `_TILE_COLUMNS` columns.
"""


def empty_buffer(context: Context, layout: TensorSharding, elements: int, like: Any) -> Any:
    """Returns a buffer of zeros in host memory, shape [devices * elements * rows, columns].

    - `layout`: the layout of the values that it will hold.
    - `elements`: the number of values.
    - `like`: an array with the shape and the dtype of the values.
    """
    rows, columns = _matrix(_local_shape(context, layout, like.shape))
    all_rows = context.execution.mesh.size * max(elements, LEAST_ELEMENTS) * rows
    empty = jnp.zeros((all_rows, columns), like.dtype)
    on_host = NamedSharding(context.jax_mesh, _by_device(context), memory_kind=HOST_MEMORY)
    return jax.device_put(empty, on_host)


def written(
    context: Context, layout: TensorSharding, buffer: Any, array: Any, index: Any, token: Any
) -> tuple[Any, Any]:
    """Returns the buffer with an array written to one of its elements, and the token of the copy,
    shape [devices].

    - `layout`: the layout of the array. `index`: the index of the element.
    - `token`: the token of the copy before, shape [devices]. This copy waits for it.
    """

    def write(buffer: Any, part: Any, index: Any, token: Any) -> tuple[Any, Any]:
        rows, columns = _matrix(part.shape)
        start = (index + _zero_behind(token)) * rows
        element = jax.device_put(part.reshape(rows, columns), jax.memory.Space.Host)
        buffer = lax.dynamic_update_slice(buffer, element, (start, 0))
        read_back = lax.dynamic_slice(buffer, (start, 0), (min(rows, _TILE_ROWS), columns))
        return buffer, jnp.max(jax.device_put(read_back, jax.memory.Space.Device))[None]

    by_device, spec = _by_device(context), context.execution.mesh.partition_spec(layout)
    run = context.on_each_device(write, (by_device, spec, P(), by_device), (by_device, by_device))
    return run(buffer, array, index, token)


def element(
    context: Context, layout: TensorSharding, shape: Sequence[int], buffer: Any, index: Any
) -> Any:
    """Returns an element of a buffer, copied to the device: an array of a shape in a layout."""
    local = _local_shape(context, layout, shape)

    def read(buffer: Any, index: Any) -> Any:
        rows, columns = _matrix(local)
        part = lax.dynamic_slice(buffer, (index * rows, 0), (rows, columns))
        return jax.device_put(part, jax.memory.Space.Device).reshape(local)

    spec = context.execution.mesh.partition_spec(layout)
    return context.on_each_device(read, (_by_device(context), P()), spec)(buffer, index)


def is_paced(context: Context, layout: TensorSharding, shape: Sequence[int]) -> bool:
    """Whether an argument or result in host memory is copied by halves (`fetched`, `stored`)."""
    is_whole = _halved_dimension(_local_shape(context, layout, shape)) is None
    return context.execution.facts.hoists_copies and not is_whole


def fetched(context: Context, layout: TensorSharding, array: Any, zero: Any) -> Any:
    """Returns an array in host memory, copied to the device in two halves.

    XLA itself would choose when the copy of a whole array begins. The copies of halves begin at
    indices, which depend on `zero`.

    - `zero`: a zero that the program knows only when the copy may begin.
    """

    def read(part: Any, zero: Any) -> Any:
        dim, half = _half(part.shape)
        starts = (zero, zero + half)
        halves = (lax.dynamic_slice_in_dim(part, start, half, dim) for start in starts)
        moved = [jax.device_put(on_host, jax.memory.Space.Device) for on_host in halves]
        return _in_order(jnp.concatenate(moved, dim))

    spec = context.execution.mesh.partition_spec(layout)
    return context.on_each_device(read, (spec, P()), spec)(array, zero)


def stored(
    context: Context, layout: TensorSharding, buffer: Any, array: Any, token: Any
) -> tuple[Any, Any]:
    """Returns an array copied to the host in two halves, and the token of the copy, shape
    [devices].

    - `buffer`: an array in host memory, whose memory the copy may use.
    - `token`: the token of the copy before, shape [devices]. This copy waits for it.
    """

    def write(buffer: Any, part: Any, token: Any) -> tuple[Any, Any]:
        dim, half = _half(part.shape)
        zero, part = _zero_behind(token), _in_order(part)
        for start in (0, half):
            piece = lax.slice_in_dim(part, start, start + half, axis=dim)
            on_host = jax.device_put(piece, jax.memory.Space.Host)
            buffer = lax.dynamic_update_slice_in_dim(buffer, on_host, start + zero, dim)
        last_rows = min(half, _tile(part.shape, dim))
        read_back = lax.dynamic_slice_in_dim(buffer, 2 * half - last_rows + zero, last_rows, dim)
        return buffer, jnp.max(jax.device_put(read_back, jax.memory.Space.Device))[None]

    by_device, spec = _by_device(context), context.execution.mesh.partition_spec(layout)
    return context.on_each_device(write, (spec, spec, by_device), (spec, by_device))(
        buffer, array, token
    )


def row_major(part: Any) -> Any:
    """Returns an array constrained to a row-major layout in memory."""
    return with_layout_constraint(part, Layout(tuple(range(part.ndim))))


def _in_order(part: Any) -> Any:
    """Returns an array constrained to the layout in memory of an argument. Otherwise XLA would
    transpose it for its reader, even in host memory."""
    return with_layout_constraint(part, Layout(default_order(part.shape)))


def _half(local: Sequence[int]) -> tuple[int, int]:
    """Returns the dimension along which a shard is halved, and the size of a half along it."""
    dim = _halved_dimension(local)
    assert dim is not None
    return dim, local[dim] // 2


def _halved_dimension(local: Sequence[int]) -> int | None:
    """Returns the first dimension along which both halves consist of whole tiles; None if there is
    none. `local`: the shape of a shard."""
    halved = (dim for dim, extent in enumerate(local) if extent % (2 * _tile(local, dim)) == 0)
    return next(halved, None)


def _tile(local: Sequence[int], dimension: int) -> int:
    """Returns the size of a tile along a dimension of a shard."""
    place = default_order(local)[::-1].index(dimension)
    return (_TILE_COLUMNS, _TILE_ROWS)[place] if place < 2 else 1


def _local_shape(context: Context, layout: TensorSharding, shape: Sequence[int]) -> tuple[int, ...]:
    return layout.local_shape(shape, context.execution.mesh.shape)


def _matrix(local: Sequence[int]) -> tuple[int, int]:
    """Returns the number of rows and of columns of the matrix that stores a shard."""
    columns = local[-1] if len(local) > 1 else gcd(local[0], _TILE_COLUMNS)
    return prod(local) // columns, columns


def _zero_behind(token: Any) -> Any:
    """Returns an int32 zero that the program knows only after a token, shape [1]."""
    unknown = lax.optimization_barrier(jnp.uint32(0))
    return jnp.minimum(lax.convert_element_type(token[0], jnp.uint32), unknown).astype(jnp.int32)


def _by_device(context: Context) -> P:
    """Returns the spec of an array whose first dimension is divided over all devices."""
    return P(context.jax_mesh.axis_names)
