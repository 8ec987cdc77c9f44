"""The input and the result of planners, the ranking of schedules, and the report of `solve`."""

import time
from dataclasses import dataclass
from typing import Generic

from typing_extensions import TypeVar

from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.simulate import simulate
from kiwi.solver.result import SolveStatus
from kiwi.solver.schedule import Schedule

_Schedule = TypeVar("_Schedule", default=Schedule)


@dataclass(frozen=True)
class Task:
    """The task of a planner: a schedule of `graph` within `budget_bytes`.

    - `deadline`: the value of `time.monotonic()` at which the planner must have ended.
    - `time_limit_seconds`: the time for the whole search. Planners derive the length of their
      searches from it, not from the clock, so that results repeat unless the clock binds.
    - `seed`: the seed of all random choices.
    - `start`: the result of an earlier search for another budget, from which this search may
      continue.
    """

    graph: RematGraph
    budget_bytes: int
    deadline: float
    time_limit_seconds: float
    seed: int
    start: Schedule | None = None

    def remaining_seconds(self) -> float:
        """Returns the time left until the deadline, at least 0."""
        return max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True)
class Finding(Generic[_Schedule]):
    """The result of a planner, or of a part of its search.

    - `schedule`: the best schedule found, or None. The planner claims that it is valid; `solve`
      simulates it.
    - `family_bound`: a proven lower bound on the objective of the schedules that the planner can
      express (one order, one form), or None. The unit is seconds, or joules if energy is minimised.
      The bound may exceed the objective of schedules outside this family.
    - `family_is_infeasible`: the planner proved that no schedule of its family fits the budget.
    - `iterations`: moves, nodes or table entries, as the planner counts them.
    - `deterministic`: False if the clock ended the search, so that another run may differ.
    """

    schedule: _Schedule | None
    family_bound: float | None = None
    family_is_infeasible: bool = False
    iterations: int = 0
    deterministic: bool = True

    def why_none(self, planner: str) -> str:
        """Returns a phrase that says why the planner of this name has no schedule that fits."""
        if self.family_is_infeasible:
            return f"proven for the schedules that {planner!r} can express; others may exist"
        return f"planner {planner!r} found none; that is no proof that there is none"


@dataclass(frozen=True)
class Candidate:
    """A schedule with its simulated peak and time. Candidates are compared by `rank`.

    - `fits`: the peak is within the budget.
    - `is_least`: the schedule fits and recomputes nothing, so that no schedule is faster.
    """

    schedule: Schedule
    peak_bytes: int
    seconds: float
    fits: bool
    is_least: bool

    @property
    def rank(self) -> tuple[int, float, float]:
        """The sort key of the candidate, smaller is better.

        Schedules within the budget come first, by time. Others follow by peak.
        """
        if self.fits:
            return (0, self.seconds, self.peak_bytes)
        return (1, self.peak_bytes, self.seconds)


def candidate(task: Task, schedule: Schedule) -> Candidate:
    """Returns the candidate of a valid schedule, which is simulated."""
    simulated = simulate(task.graph, schedule)
    peak_bytes, seconds = simulated.peak_bytes, simulated.compute_seconds
    fits, once_seconds = peak_bytes <= task.budget_bytes, task.graph.once_seconds
    is_least = fits and seconds <= once_seconds * (1 + 1e-12)
    return Candidate(schedule, peak_bytes, seconds, fits, is_least)


@dataclass(frozen=True)
class RematResult:
    """A simulated schedule within the budget.

    - `bound_seconds`: a proven lower bound on the time of every schedule of the graph.
    - `family_bound_seconds`: `Finding.family_bound`, in seconds.
    - `iterations`, `deterministic`: as in `Finding`.
    - `status`: `OPTIMAL` if the time equals `bound_seconds`, else `FEASIBLE`.
    - `planner`, `seconds`: the name of the planner and its wall time.
    """

    schedule: Schedule
    peak_bytes: int
    compute_seconds: float
    bound_seconds: float
    family_bound_seconds: float | None
    status: SolveStatus
    planner: str
    seconds: float
    iterations: int
    deterministic: bool

    @property
    def overhead(self) -> float:
        """The time beyond computing every operator once, as a share of that time."""
        return self.compute_seconds / self.bound_seconds - 1.0 if self.bound_seconds else 0.0
