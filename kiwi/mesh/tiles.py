"""The tiles of buffers in a TPU's memory.

The two minor dimensions of a buffer are padded to whole tiles of 8 x 128 elements, and a vector to
tiles of 128 to 1,024 elements. Layout assignment chooses the minor dimensions with the least
padding.
"""

import functools
from collections.abc import Sequence
from itertools import permutations
from math import prod

_LANES, _SUBLANES, _LONGEST_TILE = 128, 8, 1024
"""The columns and rows of a tile, and the largest tile of a vector, in elements."""


@functools.lru_cache(maxsize=4096)
def buffer_elements(shape: tuple[int, ...], minor: tuple[int, ...] | None = None) -> int:
    """Returns the elements of a buffer with padding, as `tiled_elements`. A scalar takes 128."""
    return tiled_elements(shape, minor) if shape else _LANES


def tiled_elements(shape: Sequence[int], minor: tuple[int, ...] | None = None) -> int:
    """Returns the elements of a buffer with padding.

    - `minor`: the two dimensions that are cut into tiles, or the one dimension along which the rows
      of tiles lie. By default the dimensions with the least padding are chosen.
    """
    if minor is not None and len(minor) == 1:
        (lanes,) = minor
        others = set(
            permutations(size for dim, size in enumerate(shape) if dim != lanes and size > 1)
        )
        return min(elements_in_order([*sizes, shape[lanes]]) for sizes in others)
    if minor is not None:
        major = prod(size for dim, size in enumerate(shape) if dim not in minor)
        sizes = [max(2, shape[dim]) for dim in minor]
        return major * min(map(elements_in_order, (sizes, sizes[::-1])))
    return min(map(elements_in_order, set(permutations(size for size in shape if size > 1))))


def default_order(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the order of an argument's dimensions, major to minor: row-major, or with the
    dimension last that gives the least padding."""
    dims = range(len(shape))
    moved = [(*(dim for dim in dims if dim != minor), minor) for minor in reversed(dims)]
    return min(
        moved, key=lambda order: elements_in_order([shape[dim] for dim in order]), default=()
    )


@functools.lru_cache(maxsize=4096)
def cuts_tiles(shape: tuple[int, ...], dim: int, count: int, itemsize: int, cores: int) -> bool:
    """Whether XLA:TPU reduce-scatters a buffer of `shape` in `count` pieces along dimension `dim`.

    Dimensions of one element do not count. Along the minor dimension, pieces with elements of 2
    bytes must not be an odd number of whole tiles. Along the second-minor dimension of three or
    more, pieces must be whole tiles. Along the major dimension of two, each core has a part, whose
    padding may be at most a quarter. Any other dimension can be cut.

    - `cores`: the number of cores of a device.
    """

    def waste(order: tuple[int, ...]) -> tuple[int, bool]:
        sizes = [shape[axis] for axis in order]
        return elements_in_order(sizes), sizes[-2] < 32 // itemsize

    longer = tuple(axis for axis, size in enumerate(shape) if size > 1)
    if count == 1 or dim not in longer or len(longer) < 2:
        return True
    order, piece = min(permutations(longer), key=waste), shape[dim] // count
    if dim == order[-1]:
        return itemsize != 2 or piece % (2 * _LANES) != _LANES
    if dim == order[0]:
        return len(order) > 2 or 4 * _filled(piece, cores * _SUBLANES) <= 5 * piece
    return dim != order[-2] or piece % (32 // itemsize) == 0


def elements_in_order(sizes: Sequence[int]) -> int:
    """Returns the elements of a buffer with padding, with its last two dimensions of more than one
    element as the minor ones."""
    longer = [size for size in sizes if size > 1]
    if len(longer) < 2:
        size = prod(longer)
        return _filled(size, min(_LONGEST_TILE, max(_LANES, _power_of_two(size))))
    sublanes, lanes = longer[-2:]
    rows = min(_SUBLANES, _power_of_two(sublanes))
    in_tiles = _filled(lanes, _LANES) * _filled(sublanes, rows)
    return in_tiles * (prod(longer) // (lanes * sublanes))


def _filled(size: int, tile: int) -> int:
    return -(-size // tile) * tile


def _power_of_two(size: int) -> int:
    """Returns the smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()
