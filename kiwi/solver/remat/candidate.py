"""Schedules with their simulated numbers, and which of them is better."""

from dataclasses import dataclass

from kiwi.solver.remat.result import Task
from kiwi.solver.remat.simulate import simulate
from kiwi.solver.schedule import Schedule


@dataclass(frozen=True)
class Candidate:
    """A schedule with its simulated numbers; candidates are compared by `rank`."""

    schedule: Schedule
    peak_bytes: int
    seconds: float
    budget_bytes: int

    @property
    def rank(self) -> tuple[int, float, float]:
        """Within the budget first, then least time; otherwise least peak."""
        if self.peak_bytes <= self.budget_bytes:
            return (0, self.seconds, self.peak_bytes)
        return (1, self.peak_bytes, self.seconds)

    def is_least(self, task: Task) -> bool:
        """Whether nothing is recomputed within the budget: no schedule is better."""
        once = task.graph.once_seconds
        return self.peak_bytes <= self.budget_bytes and self.seconds <= once * (1 + 1e-12)


@dataclass(frozen=True)
class Outcome:
    """The best schedule of a part of a search.

    `iterations`: moves or neighbourhoods; `completed`: False where the clock ended or shortened it.
    """

    candidate: Candidate
    iterations: int
    completed: bool


def candidate(task: Task, schedule: Schedule) -> Candidate:
    """Simulates a valid schedule."""
    found = simulate(task.graph, schedule)
    return Candidate(schedule, found.peak_bytes, found.compute_seconds, task.budget_bytes)
