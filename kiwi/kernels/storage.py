"""The bytes of a value's buffer on one device.

By default a value is dense: its bytes over its shards. A target may store values in another dtype,
fill up tiles of their two minor dimensions, or keep a second copy of an argument.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from kiwi.hlo.program import Value
from kiwi.mesh import TensorSharding
from kiwi.mesh.tiles import buffer_elements

MinorDimensions = tuple[int, ...]
"""The two dimensions of a value that form tiles; of one alone, the one along which rows of tiles
lie."""


@dataclass(frozen=True, eq=False)
class Storage:
    """The buffers of a step's values.

    - `values`: the values of the program.
    - `is_tiled`: buffers are filled up to whole tiles (`kiwi.mesh.tiles`).
    - `minor`: by value, the dimensions of its tiles, if they are not those that waste least.
    - `stored_itemsize`: by value, bytes of an element as it is stored, if they differ from the
      dtype's own.
    - `copied_itemsize`: by argument, bytes of an element of a copy that is made as the step starts
      and held as long. The copy has the tiles of `minor`; the argument has not.
    """

    values: Sequence[Value]
    is_tiled: bool = False
    minor: Mapping[int, MinorDimensions] = field(default_factory=dict)
    stored_itemsize: Mapping[int, int] = field(default_factory=dict)
    copied_itemsize: Mapping[int, int] = field(default_factory=dict)
    _known: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict, init=False)

    def local_bytes(self, value: int, layout: TensorSharding, mesh_shape: Sequence[int]) -> int:
        """Bytes of one device's part of a value in a layout."""
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
            return elements * itemsize  # Its rows lie so anyway.
        return elements * itemsize + copied_elements * self.copied_itemsize.get(value.index, 0)

    def copied_bytes(self, moved: Value, layout: TensorSharding, mesh_shape: Sequence[int]) -> int:
        """Bytes of one device's part of a copy of what is moved, in a layout."""
        if not self.is_tiled:
            return moved.size_bytes // layout.shard_count(mesh_shape)
        shape = layout.local_shape(moved.shape, mesh_shape)
        return buffer_elements(shape, self.minor.get(moved.index)) * moved.itemsize

    def padding(self, value: int, layout: TensorSharding, mesh_shape: Sequence[int]) -> float:
        """The factor by which tiles enlarge the buffer of one device's part of a value."""
        if not self.is_tiled:
            return 1.0
        shape = layout.local_shape(self.values[value].shape, mesh_shape)
        return buffer_elements(shape, self.minor.get(value)) / prod(shape) if shape else 1.0

    def itemsize(self, value: int) -> int:
        """Bytes of an element of a value, as it is stored."""
        return self.stored_itemsize.get(value, self.values[value].itemsize)

    def kind(self, value: int) -> Hashable:
        """The key of a value's storage: buffers of two values with the same shape, dtype and key
        are equal."""
        return (
            self.stored_itemsize.get(value),
            self.minor.get(value),
            self.copied_itemsize.get(value),
        )
