"""Lists of integers in XLA's text: written out, or as a transposed iota, `[2,4]T(1,0)`.

XLA writes the devices of replica groups, meshes and tile assignments so.
"""

import re
from math import prod

import numpy as np

IOTA = r"\[(?P<from>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
"""The pattern of an iota, for patterns whose matches `iota` reads."""


def iota(match: re.Match[str]) -> np.ndarray:
    """0, 1, ... in the shape `from`, transposed by `order`."""
    source = integers(match["from"])
    order = integers(match["order"]) if match["order"] else range(len(source))
    return np.arange(prod(source)).reshape(source).transpose(tuple(order))


def integers(text: str) -> list[int]:
    """The numbers of a text like `1,2,3`."""
    return [int(number) for number in text.split(",") if number]
