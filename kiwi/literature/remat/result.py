"""The input and the result of planners, the order of schedules, and the report of `solve`."""

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

    - `deadline`: value of `time.monotonic()` at which the planner must have ended.
    - `time_limit_seconds`: the whole time. Planners plan the length of their searches by it, not by
      the clock, so that results repeat unless the clock binds.
    - `seed`: of all random choices.
    - `start`: the result of an earlier search for another budget, from which this one may go on.
    """

    graph: RematGraph
    budget_bytes: int
    deadline: float
    time_limit_seconds: float
    seed: int
    start: Schedule | None = None

    def remaining_seconds(self) -> float:
        """Time left until the deadline, at least 0."""
        return max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True)
class Finding(Generic[_Schedule]):
    """The result of a planner, or of a part of its search.

    - `schedule`: the best schedule found (the planner's claim; `solve` simulates it), or None.
    - `family_bound`: a proven lower bound on the objective of the schedules that the planner can
      express (one order, one form), in seconds, or in joules if that was asked for; or None. It may
      exceed that of better schedules.
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
        """Why there is no schedule that fits, of a planner of this name."""
        if self.family_is_infeasible:
            return f"proven for the schedules that {planner!r} can express; others may exist"
        return f"planner {planner!r} found none; that is no proof that there is none"


@dataclass(frozen=True)
class Candidate:
    """A schedule with its simulated numbers; candidates are compared by `rank`.

    `fits`: it is within the budget; `is_least`: and recomputes nothing, so that none is better.
    """

    schedule: Schedule
    peak_bytes: int
    seconds: float
    fits: bool
    is_least: bool

    @property
    def rank(self) -> tuple[int, float, float]:
        """Within the budget first, then least time; otherwise least peak."""
        if self.fits:
            return (0, self.seconds, self.peak_bytes)
        return (1, self.peak_bytes, self.seconds)


def candidate(task: Task, schedule: Schedule) -> Candidate:
    """Simulates a valid schedule."""
    found = simulate(task.graph, schedule)
    peak_bytes, seconds = found.peak_bytes, found.compute_seconds
    fits, once_seconds = peak_bytes <= task.budget_bytes, task.graph.once_seconds
    is_least = fits and seconds <= once_seconds * (1 + 1e-12)
    return Candidate(schedule, peak_bytes, seconds, fits, is_least)


@dataclass(frozen=True)
class RematResult:
    """A simulated schedule within the budget.

    - `bound_seconds`: proven lower bound on the time of every schedule of the graph.
    - `family_bound_seconds`, `iterations`, `deterministic`: as in `Finding`, in seconds.
    - `status`: `OPTIMAL` if the time equals `bound_seconds`, else `FEASIBLE`.
    - `planner`, `seconds`: who planned it, and in what wall time.
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
        """Time beyond computing every operator once, as a share of that time."""
        return self.compute_seconds / self.bound_seconds - 1.0 if self.bound_seconds else 0.0
