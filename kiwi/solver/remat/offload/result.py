"""What a planner with offloading finds."""

from collections.abc import Sequence
from dataclasses import dataclass

from kiwi.solver.remat.offload.host import Host, OffloadSchedule
from kiwi.solver.remat.offload.simulate import OffloadSimulation, simulate
from kiwi.solver.remat.result import Task


@dataclass(frozen=True)
class OffloadFinding:
    """What a planner found.

    - `schedule`: the planner's claim, which `solve_offload` simulates, or None.
    - `family_bound`: proven lower bound on the objective of the schedules that the planner can
      express, in seconds, or in joules where that is what it was asked for; or None.
    - `family_is_infeasible`: the planner proved that no schedule of its family fits.
    - `deterministic`: False where the clock ended the search.
    """

    schedule: OffloadSchedule | None
    family_bound: float | None = None
    family_is_infeasible: bool = False
    deterministic: bool = True


def fits(task: Task, host: Host, found: OffloadSimulation) -> bool:
    """Whether a schedule is within the memory of both sides."""
    on_host = host.memory_bytes is None or found.host_peak_bytes <= host.memory_bytes
    return found.peak_bytes <= task.budget_bytes and on_host


def best_schedule(
    task: Task, host: Host, schedules: Sequence[OffloadSchedule]
) -> OffloadSchedule | None:
    """The fastest of those that fit; else that of least peak; None of none."""

    def rank(schedule: OffloadSchedule) -> tuple[bool, float, float]:
        found = simulate(task.graph, host, schedule)
        if fits(task, host, found):
            return False, found.seconds, found.peak_bytes
        return True, found.peak_bytes, found.seconds

    return min(schedules, key=rank, default=None)
