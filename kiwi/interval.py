"""Intervals of time in which memory is held.

The module is separate from the solver's, because the process of a compiler needs no solver.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kiwi.errors import InvalidProblemError


@dataclass(frozen=True, slots=True)
class Interval:
    """`bytes` are held at every point of time in the half-open interval [start, end)."""

    start: int
    end: int
    bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise InvalidProblemError(
                f"Interval [{self.start}, {self.end}) is not an interval of time.",
                cause="the start is negative or lies behind the end",
                suggestion="give half-open intervals with 0 <= start <= end",
            )
        if self.bytes < 0:
            raise InvalidProblemError(
                f"Interval [{self.start}, {self.end}) holds {self.bytes} bytes.",
                cause="memory use cannot be negative",
                suggestion="check the sizes for integer overflow",
            )


def curve_bytes(intervals: Iterable[Interval], horizon: int) -> np.ndarray:
    """Returns the bytes that are alive at each point of time: int64 [horizon]."""
    change = np.zeros(horizon + 1, dtype=np.int64)
    for interval in intervals:
        change[interval.start] += interval.bytes
        change[interval.end] -= interval.bytes
    return np.cumsum(change[:horizon])


def bytes_at(intervals: Iterable[Interval], time: int) -> int:
    """Returns the bytes that are alive at one point of time."""
    return sum(interval.bytes for interval in intervals if interval.start <= time < interval.end)
