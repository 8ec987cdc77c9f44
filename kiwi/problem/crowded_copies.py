"""Copies to and from the host that crowd in an iteration of a loop. A forward body takes

    max over v of (sum of c(u), u up to v + sum of k(w), w from v on)

where c(u) is the time of computing unit u, and k(w) the time of copying the result of unit w. A
backward body takes the same in reverse (docs/how_it_works/cost_model.md, "Copies to the host"; two
machines in line, Johnson, *Optimal two- and three-stage production schedules*, 1954). Let v be the
unit of the maximum when everything that may be copied is copied. It divides the body: the copies
from v on can hide only behind the computation after v.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kiwi.hlo.units import Unit, UnitGraph
from kiwi.memory.residency import Residency


@dataclass(frozen=True)
class Crowded:
    """The units at which copies crowd, by loop.

    - `to_host`: in forward bodies, the copies to the host of this unit and all units behind it
      crowd.
    - `from_host`: in backward bodies, the copies from the host that this unit and all units before
      it read crowd.
    """

    to_host: Mapping[int | None, int] = field(default_factory=dict)
    from_host: Mapping[int | None, int] = field(default_factory=dict)

    def is_beside(self, unit: Unit) -> bool:
        """Whether crowded copies may hide behind the first computation of a unit."""
        first_crowded, last_crowded = (
            self.to_host.get(unit.loop, math.inf),
            self.from_host.get(unit.loop, -1),
        )
        return unit.index > first_crowded or unit.index < last_crowded

    def is_among(self, unit: Unit) -> bool:
        """Whether the copy of a unit's result to the host is a crowded copy."""
        return unit.index >= self.to_host.get(unit.loop, math.inf)

    def until(self, loop: int, residencies: Iterable[Residency]) -> np.ndarray:
        """Boolean [residencies]: whether the fetch in the backward body `loop` is a crowded copy,
        or the recomputation there may hide one."""
        last_crowded = self.from_host.get(loop, -1)
        return np.array(
            [
                residency.again_at is not None and residency.again_at <= last_crowded
                for residency in residencies
            ]
        )


def crowded(
    units: UnitGraph,
    computed_seconds: Mapping[int, float],
    copied_seconds: Mapping[int, float],
    fetched: Mapping[int, tuple[int, int]],
) -> Crowded:
    """Returns the units at which copies crowd. All mappings are by unit.

    - `computed_seconds`: the least seconds of computing the unit.
    - `copied_seconds`: the seconds of copying the unit's result in one direction.
    - `fetched`: for units whose results may be copied, the loop that fetches the result and the
      unit before which it is fetched.
    """
    needed: dict[int, float] = {}
    for unit, (_, time) in fetched.items():
        needed[time] = needed.get(time, 0.0) + copied_seconds[unit]
    bodies: dict[int, list[int]] = {}
    for unit in units.units:
        if unit.loop is not None:
            bodies.setdefault(unit.loop, []).append(unit.index)
    forward = {units.units[unit].loop for unit in fetched}
    backward = {loop for loop, _ in fetched.values()}
    to_host = {k: _most(body[::-1], computed_seconds, copied_seconds) for k, body in bodies.items()}
    from_host = {k: _most(body, computed_seconds, needed) for k, body in bodies.items()}
    return Crowded(
        {k: unit for k, unit in to_host.items() if unit is not None and k in forward},
        {k: unit for k, unit in from_host.items() if unit is not None and k in backward},
    )


def _most(
    body: Sequence[int], computed_seconds: Mapping[int, float], copied_seconds: Mapping[int, float]
) -> int | None:
    """Returns the unit with the most seconds of copies of this unit and the units before it in
    `body` that computation before it has not hidden; None if there are no such copies."""
    left_seconds, most_seconds, most = 0.0, 0.0, None
    for unit in body:
        left_seconds += copied_seconds.get(unit, 0.0)
        if left_seconds > most_seconds:
            most_seconds, most = left_seconds, unit
        left_seconds -= computed_seconds.get(unit, 0.0)
    return most
