"""Tiles of buffers in a TPU's memory.

The two minor dimensions are filled up to whole tiles of 8 x 128 elements, those of a vector to
tiles of 128 to 1,024. Layout assignment chooses the minor dimensions that waste least.
"""

import functools
from collections.abc import Sequence
from itertools import permutations
from math import prod

_LANES, _SUBLANES, _LONGEST_TILE = 128, 8, 1024


@functools.lru_cache(maxsize=4096)
def buffer_elements(shape: tuple[int, ...], minor: tuple[int, ...] | None = None) -> int:
    """As `tiled_elements`, for scalars as well, which have a tile, too."""
    return tiled_elements(shape, minor) if shape else _LANES


def tiled_elements(shape: Sequence[int], minor: tuple[int, ...] | None = None) -> int:
    """Elements of a buffer with its tiles filled up. `minor` are the two dimensions cut into tiles,
    or the one along which their rows lie; None chooses them."""
    if minor is not None and len(minor) == 1:
        (lanes,) = minor
        others = set(permutations(size for d, size in enumerate(shape) if d != lanes and size > 1))
        return min(elements_in_order([*sizes, shape[lanes]]) for sizes in others)
    if minor is not None:
        major = prod(size for d, size in enumerate(shape) if d not in minor)
        sizes = [max(2, shape[d]) for d in minor]
        return major * min(map(elements_in_order, (sizes, sizes[::-1])))
    return min(map(elements_in_order, set(permutations(size for size in shape if size > 1))))


def default_order(shape: Sequence[int]) -> tuple[int, ...]:
    """The order of an argument's dimensions, major to minor: row-major, or with the dimension as
    the minor one that wastes least."""
    dims = range(len(shape))
    moved = [(*(d for d in dims if d != minor), minor) for minor in reversed(dims)]
    return min(moved, key=lambda order: elements_in_order([shape[d] for d in order]), default=())


@functools.lru_cache(maxsize=4096)
def cuts_tiles(shape: tuple[int, ...], dim: int, count: int, itemsize: int, cores: int) -> bool:
    """Whether XLA:TPU reduce-scatters a buffer in `count` pieces along a dimension.

    The outermost dimension, of which each core has a part, may be filled up by a quarter at most.
    Other rows have to be whole tiles, and elements of 2 bytes an even number of tiles.
    """

    def waste(order: tuple[int, ...]) -> tuple[int, bool]:
        sizes = [shape[d] for d in order]
        return elements_in_order(sizes), sizes[-2] < 32 // itemsize

    longer = tuple(d for d, size in enumerate(shape) if size > 1)
    if count == 1 or dim not in longer or len(longer) < 2:
        return True
    order, piece = min(permutations(longer), key=waste), shape[dim] // count
    if dim == order[-1]:
        return itemsize != 2 or piece % (2 * _LANES) != _LANES
    if dim == order[0]:
        return len(order) > 2 or 4 * _filled(piece, cores * _SUBLANES) <= 5 * piece
    return dim != order[-2] or piece % (32 // itemsize) == 0


def elements_in_order(sizes: Sequence[int]) -> int:
    """`buffer_elements` with the last two dimensions of more than one element as the minor ones."""
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
    """The least one that is not smaller."""
    return 1 << max(0, size - 1).bit_length()
