"""Buffers over time: the bytes that are alive at each point of time, and the peak."""

import functools
from dataclasses import dataclass, field

from kiwi.interval import Interval, curve_bytes


@dataclass(frozen=True, slots=True)
class Buffer(Interval):
    """Device memory of one owner over a live range, half-open in points of time.

    - `kind`, `index`: the owner. "argument": the value `index`. "result": the results of unit
      `index`, and its workspace while it runs. "copy": an operand of unit `index` in another
      layout, also while later units read the copy.
    - `overwritten_by`: the unit that runs at `end` and writes its result over this buffer; -1 for
      none. Plan files do not contain it.
    """

    kind: str = "result"
    index: int = -1
    overwritten_by: int = field(default=-1, compare=False)


@dataclass(frozen=True)
class Timeline:
    """Buffers over the points of time 0 .. horizon - 1."""

    buffers: tuple[Buffer, ...]
    horizon: int

    @functools.cached_property
    def curve_bytes(self) -> tuple[int, ...]:
        """The bytes that are alive at each point of time."""
        return tuple(curve_bytes(self.buffers, self.horizon).tolist())

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes that are alive at once. XLA's heap may need more
        (`kiwi.memory.heap`)."""
        return max(self.curve_bytes)

    @property
    def peak_time(self) -> int:
        """The first point of time at which `peak_bytes` are alive."""
        return self.curve_bytes.index(self.peak_bytes)
