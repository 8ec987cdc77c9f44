"""Axes of meshes of XLA's own, as its text names them: `mesh['a'=2,'b'=4]`, with `'b'` for a whole
axis and `'b':(1)2` for a part: the one of size 2 that has 1 before it when the axis is split.

A position is a device's place in the mesh, row-major.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_AXIS = re.compile(r"'([^']*)'=(\d+)")
_PART = re.compile(r"'(?P<axis>[^']*)'(?::\((?P<before>\d+)\)(?P<size>\d+))?")


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
