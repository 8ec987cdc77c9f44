"""What a planner is asked, what it finds, which schedule is better, and what `solve` reports."""

import time
from dataclasses import dataclass

from kiwi.solver.remat.graph import RematGraph, single_output_graph
from kiwi.solver.remat.simulate import simulate
from kiwi.solver.result import SolveStatus
from kiwi.solver.schedule import Schedule


@dataclass(frozen=True)
class Task:
    """What a planner is asked: a schedule of `graph` within `budget_bytes`.

    **Attributes:**

    - `deadline`: value of `time.monotonic()` at which the planner must have ended.
    - `time_limit_seconds`: the whole time that was given. Planners plan the length of their
      searches by it, not by the clock, so that results repeat where the clock does not bind.
    - `seed`: of all random choices.
    - `start`: what an earlier search found for another budget, from which this one may go on.
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


def smallest_task() -> Task:
    """Two operators, the second the backward operator of the first: for compiling loops ahead."""
    graph = single_output_graph([1.0, 1.0], [1, 1], [(0, 1)], backward_of=((0, 1),))
    return Task(graph, 2, time.monotonic() + 3600, 1.0, 0)


@dataclass(frozen=True)
class Finding:
    """What a planner found.

    **Attributes:**

    - `schedule`: the best schedule found (the planner's claim; `solve` simulates it), or None.
    - `family_bound_seconds`: proven lower bound on the time of the schedules that the planner
      can express (one order, one form), or None. It may exceed that of better schedules.
    - `family_is_infeasible`: the planner proved that no schedule of its family fits the budget.
    - `iterations`: moves, nodes or table entries, as the planner counts them.
    - `deterministic`: False where the clock ended the search, so that another run may differ.
    """

    schedule: Schedule | None
    family_bound_seconds: float | None = None
    family_is_infeasible: bool = False
    iterations: int = 0
    deterministic: bool = True


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


@dataclass(frozen=True)
class RematResult:
    """A simulated schedule within the budget.

    **Attributes:**

    - `schedule`, `peak_bytes`, `compute_seconds`: as simulated by `simulate`.
    - `bound_seconds`: proven lower bound on the time of every schedule of the graph.
    - `family_bound_seconds`: as in `Finding`.
    - `status`: `OPTIMAL` if the time equals `bound_seconds`, else `FEASIBLE`.
    - `planner`, `seconds`: who planned it, and in what wall time.
    - `iterations`, `deterministic`: as in `Finding`.
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
        if not self.bound_seconds:
            return 0.0
        return self.compute_seconds / self.bound_seconds - 1.0
