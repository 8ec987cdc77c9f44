"""Copies to and from the host that crowd in an iteration of a loop. A forward body takes

    max over v of (sum of c(u), u up to v + sum of k(w), w from v on)

with the seconds c(u) of computing unit u and k(v) of copying the result of v. A backward body takes
the same in reverse (docs/how_it_works/cost_model.md, "Copies to the host"; two machines in line,
Johnson, *Optimal two- and three-stage production schedules*, 1954). The v of the maximum, if
everything that may be is copied, divides the body: the copies from v on can hide only behind the
computation after v.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kiwi.hlo.units import Unit, UnitGraph
from kiwi.memory.residency import Residency


@dataclass(frozen=True)
class Crowded:
    """The units at which copies crowd, by loop. In forward bodies these are copies to the host, of
    the unit and of all behind it. In backward bodies they are copies from the host, read by the
    unit and by all before it."""

    to_host: Mapping[int | None, int] = field(default_factory=dict)
    from_host: Mapping[int | None, int] = field(default_factory=dict)

    def is_beside(self, unit: Unit) -> bool:
        """Whether copies that crowd may hide behind computing a unit the first time."""
        first, last = self.to_host.get(unit.loop, math.inf), self.from_host.get(unit.loop, -1)
        return unit.index > first or unit.index < last

    def is_among(self, unit: Unit) -> bool:
        """Whether the copy of a unit's result to the host is a crowded one."""
        return unit.index >= self.to_host.get(unit.loop, math.inf)

    def until(self, loop: int, residencies: Iterable[Residency]) -> np.ndarray:
        """By residency, whether the fetch or the recomputation in a backward body is a crowded
        copy, or may hide one."""
        last = self.from_host.get(loop, -1)
        return np.array([r.again_at is not None and r.again_at <= last for r in residencies])


def crowded(
    units: UnitGraph,
    computed_seconds: Mapping[int, float],
    copied_seconds: Mapping[int, float],
    fetched: Mapping[int, tuple[int, int]],
) -> Crowded:
    """The units where copies crowd. Arguments are by unit: the least seconds of computing, the
    seconds of copying its result either way, and, if it may be copied, the loop that reads it from
    there and the unit before which it does."""
    needed: dict[int, float] = {}
    for unit, (_, time) in fetched.items():
        needed[time] = needed.get(time, 0.0) + copied_seconds[unit]
    bodies: dict[int, list[int]] = {}
    for unit in units.units:
        if unit.loop is not None:
            bodies.setdefault(unit.loop, []).append(unit.index)
    forward = {units.units[unit].loop for unit in fetched}
    backward = {loop for loop, _ in fetched.values()}
    to_host = {k: _most(own[::-1], computed_seconds, copied_seconds) for k, own in bodies.items()}
    from_host = {k: _most(own, computed_seconds, needed) for k, own in bodies.items()}
    return Crowded(
        {k: unit for k, unit in to_host.items() if unit is not None and k in forward},
        {k: unit for k, unit in from_host.items() if unit is not None and k in backward},
    )


def _most(
    body: Sequence[int], computed_seconds: Mapping[int, float], copied_seconds: Mapping[int, float]
) -> int | None:
    """The unit up to which the computation before leaves the most copies over; None if it leaves
    none."""
    left_seconds, most_seconds, most = 0.0, 0.0, None
    for unit in body:
        left_seconds += copied_seconds.get(unit, 0.0)
        if left_seconds > most_seconds:
            most_seconds, most = left_seconds, unit
        left_seconds -= computed_seconds.get(unit, 0.0)
    return most
