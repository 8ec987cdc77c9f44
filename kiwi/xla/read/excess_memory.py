"""What the compiled program holds beyond the prediction, as memory of the problem.

XLA's schedule is aligned with the plan's by name scopes: a unit runs around the median position of
its instructions, and no later than any unit behind it. At each unit's time the correction is by
how much the compiled memory exceeds the predicted, where it does.
"""

from collections.abc import Sequence

import numpy as np

from kiwi.interval import Interval
from kiwi.xla.read.buffer_assignment import CompiledMemory


def unit_curve(memory: CompiledMemory, unit_count: int) -> np.ndarray:
    """For each unit the most that the compiled program holds while it runs, in bytes."""
    centres = _centres(memory, unit_count)
    ends = (centres[:-1] + centres[1:]) / 2
    times = np.searchsorted(ends, np.arange(len(memory.curve_bytes)), side="right")
    found = np.zeros(unit_count, dtype=np.int64)
    np.maximum.at(found, times, np.asarray(memory.curve_bytes, dtype=np.int64))
    return found


def _centres(memory: CompiledMemory, unit_count: int) -> np.ndarray:
    """For each unit the median position of its instructions, made to rise with the units. A unit
    without instructions runs when the next one does."""
    found = np.full(unit_count, float(len(memory.curve_bytes)))
    units = np.asarray(memory.units)
    for unit in np.unique(units[units >= 0]):
        found[unit] = np.median(np.flatnonzero(units == unit))
    return np.minimum.accumulate(found[::-1])[::-1]


def excess(
    memory: CompiledMemory, predicted_bytes: Sequence[int], least_bytes: float = 0.0
) -> np.ndarray:
    """For each unit the compiled bytes beyond the predicted ones, at least 0. Units at which the
    compiled program holds less than `least_bytes` count as 0."""
    predicted = np.asarray(predicted_bytes, dtype=np.int64)
    compiled = unit_curve(memory, len(predicted))
    return np.where(compiled >= least_bytes, np.maximum(compiled - predicted, 0), 0)


def as_intervals(excess_bytes: np.ndarray) -> tuple[Interval, ...]:
    """Runs of equal excess as half-open intervals of unit times."""
    edges = np.flatnonzero(np.diff(excess_bytes)) + 1
    starts, ends = np.concatenate(([0], edges)), np.concatenate((edges, [len(excess_bytes)]))
    return tuple(
        Interval(int(start), int(end), int(excess_bytes[start]))
        for start, end in zip(starts, ends, strict=True)
        if excess_bytes[start] > 0
    )
