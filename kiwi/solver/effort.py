"""The allowance of searches, in work and in seconds.

Work is the number of options and table cells that a search visits. It ends searches, because it is
the same on fast, slow and busy machines: equal requests find equal plans. The clock ends a search
only on machines on which the work takes far too long.
"""

from collections.abc import Mapping
from dataclasses import dataclass

WORK_PER_SECOND = 2e8
"""The number of options and table cells that one core visits in a second. It expresses efforts in
seconds; the speed of the machine at hand is not measured."""

EFFORTS: Mapping[str, float] = {"quick": 10.0, "normal": 60.0, "thorough": 240.0}
"""The allowance by effort of all searches for one plan of a large step, in seconds of a core with
`WORK_PER_SECOND`."""

LARGE_STEP = 250
"""The number of operators from which on a step is large and gets the whole effort. A smaller step
gets a proportional part, since it is also traced and compiled in less time."""

LEAST_SECONDS = 5.0
"""The smallest allowance of a small step, in seconds, unless the effort itself is less."""

WHOLE_EFFORTS = ("thorough",)
"""Efforts that small steps get as a whole."""


def effort_work(effort: str, operators: int | None = None) -> float:
    """Returns the work that an effort allows for a step.

    - `effort`: a key of `EFFORTS`.
    - `operators`: the number of operators of the step; None for a large step.
    """
    seconds = EFFORTS[effort]
    if operators is not None and effort not in WHOLE_EFFORTS:
        part = min(1.0, operators / LARGE_STEP)
        seconds = max(part * seconds, min(LEAST_SECONDS, seconds))
    return seconds * WORK_PER_SECOND


@dataclass(frozen=True)
class Allowance:
    """The allowance of several searches together.

    - `work`: options and table cells to visit, as `kiwi.solver.SolveResult.work` counts them.
    - `seconds`: wall time.
    """

    work: float
    seconds: float

    @property
    def planned_seconds(self) -> float:
        """The seconds for which a search should plan: the work at `WORK_PER_SECOND`, or `seconds`
        if that is less."""
        return min(self.work / WORK_PER_SECOND, self.seconds)

    def part(self, share: float) -> "Allowance":
        """Returns a share of the work and of the seconds."""
        return Allowance(share * self.work, share * self.seconds)

    def less(self, spent: "Allowance") -> "Allowance":
        """Returns the work and the seconds that are left after `spent`, each at least 0."""
        return Allowance(max(0.0, self.work - spent.work), max(0.0, self.seconds - spent.seconds))

    def at_least(self, other: "Allowance") -> "Allowance":
        """Returns the larger work and the larger seconds of the two allowances."""
        return Allowance(max(self.work, other.work), max(self.seconds, other.seconds))

    def and_also(self, spent: "Allowance") -> "Allowance":
        """Returns the sum of the work and of the seconds of the two allowances."""
        return Allowance(self.work + spent.work, self.seconds + spent.seconds)
