"""The allowance of searches: work, which is the same on every machine, and time, which is not.

The end of a search must not depend on how fast or how busy a machine is: the same request would
find another plan there. So work ends it: the options and table cells that are gone over. The clock
is for machines on which that takes far too long.
"""

from collections.abc import Mapping
from dataclasses import dataclass

WORK_PER_SECOND = 2e8
"""Options and table cells that one core goes over in a second. A machine's own speed is not
measured: the figure only lets efforts be read as seconds."""

EFFORTS: Mapping[str, float] = {"quick": 10.0, "normal": 60.0, "thorough": 240.0}
"""The allowance of all searches for one plan, in seconds of such a core, for a large step."""

LARGE_STEP = 250
"""From so many operators on a step is large. Smaller ones are allowed a part of an effort: they are
traced and compiled in less time, too, and their users wait for no more."""

LEAST_SECONDS = 5.0
"""The least allowance of a small step."""

WHOLE_EFFORTS = ("thorough",)
"""Efforts that are the same for every step."""


def effort_work(effort: str, operators: int | None = None) -> float:
    """The work that an effort allows for a step of so many operators; None for a large one."""
    seconds = EFFORTS[effort]
    if operators is not None and effort not in WHOLE_EFFORTS:
        part = min(1.0, operators / LARGE_STEP)
        seconds = max(part * seconds, min(LEAST_SECONDS, seconds))
    return seconds * WORK_PER_SECOND


@dataclass(frozen=True)
class Allowance:
    """The allowance of several searches together.

    - `work`: options and table cells to go over, as `kiwi.solver.SolveResult.work` counts them.
    - `seconds`: by the clock.
    """

    work: float
    seconds: float

    @property
    def planned_seconds(self) -> float:
        """The work in seconds of a machine as fast as `WORK_PER_SECOND`, for searches that plan
        their length."""
        return min(self.work / WORK_PER_SECOND, self.seconds)

    def part(self, share: float) -> "Allowance":
        """A share of both."""
        return Allowance(share * self.work, share * self.seconds)

    def less(self, spent: "Allowance") -> "Allowance":
        """The rest of both, at least 0."""
        return Allowance(max(0.0, self.work - spent.work), max(0.0, self.seconds - spent.seconds))

    def at_least(self, other: "Allowance") -> "Allowance":
        """The more of each."""
        return Allowance(max(self.work, other.work), max(self.seconds, other.seconds))

    def and_also(self, spent: "Allowance") -> "Allowance":
        """The sum of both."""
        return Allowance(self.work + spent.work, self.seconds + spent.seconds)
