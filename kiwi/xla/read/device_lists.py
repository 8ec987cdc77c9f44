"""Devices in XLA's text: of replica groups, meshes and tile assignments.

- Lists of integers, written out, or as a transposed iota, `[2,4]T(1,0)`.
- Axes of meshes of XLA's own: `mesh['a'=2,'b'=4]`, with `'b'` for a whole axis and `'b':(1)2` for a
  part: the one of size 2 that has 1 before it when the axis is split. A position is a device's
  place in the mesh, row-major.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

IOTA = r"\[(?P<from>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
"""The pattern of an iota, for patterns whose matches `iota` reads."""

_AXIS = re.compile(r"'([^']*)'=(\d+)")
_PART = re.compile(r"'(?P<axis>[^']*)'(?::\((?P<before>\d+)\)(?P<size>\d+))?")


def iota(match: re.Match[str]) -> np.ndarray:
    """0, 1, ... in the shape `from`, transposed by `order`."""
    source = integers(match["from"])
    order = integers(match["order"]) if match["order"] else range(len(source))
    return np.arange(prod(source)).reshape(source).transpose(tuple(order))


def integers(text: str) -> list[int]:
    """The numbers of a text like `1,2,3`."""
    return [int(number) for number in text.split(",") if number]


@dataclass(frozen=True)
class AxisPart:
    """A part of an axis: `stride` positions lie between two neighbours along it."""

    stride: int
    size: int

    def of(self, position: np.ndarray) -> np.ndarray:
        """Where along the part each position lies."""
        return position // self.stride % self.size


def mesh_sizes(text: str) -> dict[str, int]:
    """The size of each axis, in the order of the mesh."""
    return {name: int(size) for name, size in _AXIS.findall(text)}


def axis_parts(text: str, sizes: dict[str, int]) -> Iterator[AxisPart]:
    """The axes that a text names, or their parts."""
    strides, behind = {}, 1
    for name in reversed(sizes):
        strides[name], behind = behind, behind * sizes[name]
    for found in _PART.finditer(text):
        whole = sizes[found["axis"]]
        before, size = int(found["before"] or 1), int(found["size"] or whole)
        yield AxisPart(strides[found["axis"]] * (whole // (before * size)), size)
