"""Intervals of time that hold memory: apart, as the process of a compiler needs no solver."""

from dataclasses import dataclass

from kiwi.errors import InvalidProblemError


@dataclass(frozen=True, slots=True)
class Interval:
    """`bytes` held at every point of time in the half-open interval [start, end)."""

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
