"""The bytes of a value's buffer on one device.

By default a buffer is dense: it has the bytes of the value divided by the number of its shards. A
target may store values in another dtype, pad their two minor dimensions to whole tiles, or keep a
second copy of an argument.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from kiwi.hlo.program import Value
from kiwi.mesh import TensorSharding
from kiwi.mesh.tiles import buffer_elements

MinorDimensions = tuple[int, ...]
"""The two dimensions of a value that are cut into tiles. A single dimension is the one along which
the rows of tiles lie; the other one is free."""


@dataclass(frozen=True, eq=False)
class Storage:
    """The buffers of a step's values.

    - `values`: the values of the program.
    - `is_tiled`: whether buffers are padded to whole tiles (`kiwi.mesh.tiles`).
    - `minor`: by value, the dimensions that are cut into tiles, if these are not the dimensions
      that waste least.
    - `stored_itemsize`: by value, the bytes of a stored element, if they differ from the dtype's
      own size.
    - `copied_itemsize`: by argument, the bytes of an element of a copy that exists throughout the
      step. The copy has the tiles of `minor`, and the argument has the tiles that waste least.
    """

    values: Sequence[Value]
    is_tiled: bool = False
    minor: Mapping[int, MinorDimensions] = field(default_factory=dict)
    stored_itemsize: Mapping[int, int] = field(default_factory=dict)
    copied_itemsize: Mapping[int, int] = field(default_factory=dict)
    _known: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict, init=False)

    def local_bytes(self, value: int, layout: TensorSharding, mesh_shape: Sequence[int]) -> int:
        """Returns the bytes of one device's part of a value in a layout.

        `value`: the index of the value. A second copy of an argument is included.
        """
        info = self.values[value]
        if not self.is_tiled:
            return info.size_bytes // layout.shard_count(mesh_shape)
        shape = layout.local_shape(info.shape, mesh_shape)
        key = value, shape
        if key not in self._known:
            self._known[key] = self._tiled_bytes(info, shape)
        return self._known[key]

    def _tiled_bytes(self, value: Value, shape: tuple[int, ...]) -> int:
        itemsize, minor = self.itemsize(value.index), self.minor.get(value.index)
        if value.producer is not None:
            return buffer_elements(shape, minor) * itemsize
        elements, copied_elements = buffer_elements(shape), buffer_elements(shape, minor)
        if minor is not None and len(minor) == 1 and elements == copied_elements:
            return elements * itemsize  # The argument has these tiles itself, and needs no copy.
        return elements * itemsize + copied_elements * self.copied_itemsize.get(value.index, 0)

    def copied_bytes(self, moved: Value, layout: TensorSharding, mesh_shape: Sequence[int]) -> int:
        """Returns the bytes of one device's part of a resharded copy in a layout.

        `moved`: the value that collectives move, in its own dtype.
        """
        if not self.is_tiled:
            return moved.size_bytes // layout.shard_count(mesh_shape)
        shape = layout.local_shape(moved.shape, mesh_shape)
        return buffer_elements(shape, self.minor.get(moved.index)) * moved.itemsize

    def padding(self, value: int, layout: TensorSharding, mesh_shape: Sequence[int]) -> float:
        """Returns the factor by which padding to tiles enlarges one device's part of a value."""
        if not self.is_tiled:
            return 1.0
        shape = layout.local_shape(self.values[value].shape, mesh_shape)
        return (
            buffer_elements(shape, self.minor.get(value)) / prod(shape)
            if prod(shape) > 0 and shape
            else 1.0
        )

    def itemsize(self, value: int) -> int:
        """Returns the bytes of a stored element of a value."""
        return self.stored_itemsize.get(value, self.values[value].itemsize)

    def kind(self, value: int) -> Hashable:
        """Returns a key of a value's storage. Two values of the same shape, dtype and key have
        buffers of the same size."""
        return (
            self.stored_itemsize.get(value),
            self.minor.get(value),
            self.copied_itemsize.get(value),
        )
