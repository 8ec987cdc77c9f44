"""The common interface of planners with offloading: checks arguments and simulates the schedule."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kiwi.errors import InfeasibleBudgetError, InvalidArgumentError, UnknownPlannerError
from kiwi.literature.remat.graph import RematGraph
from kiwi.literature.remat.offload.fastsa import fastsa_offload
from kiwi.literature.remat.offload.host import Host, OffloadSchedule
from kiwi.literature.remat.offload.offmate import offmate
from kiwi.literature.remat.offload.poet import poet
from kiwi.literature.remat.offload.pofo import pofo
from kiwi.literature.remat.offload.simulate import OffloadFinding, OffloadSimulation, fits, simulate
from kiwi.literature.remat.result import Task
from kiwi.literature.remat.simulate import largest_working_set, order_peak_bytes
from kiwi.literature.remat.solve import PLANNERS
from kiwi.messages import topics

Find = Callable[[Task, Host], OffloadFinding]


@dataclass(frozen=True)
class OffloadMethod:
    """A way to find a schedule with offloading.

    `like` is the planner without offloading whose compiled loops `find` runs, "" for none.
    Compiling them is no part of a search, whose time is limited.
    """

    find: Find
    like: str = ""

    def warm_up(self) -> None:
        """Makes the compiled loops ready, once in a process."""
        if self.like:
            PLANNERS[self.like].warm_up()


OFFLOAD_PLANNERS: dict[str, OffloadMethod] = {
    "fastsa": OffloadMethod(fastsa_offload, "fastsa"),
    "offmate": OffloadMethod(offmate),
    "poet": OffloadMethod(poet),
    "pofo": OffloadMethod(pofo, "rotor"),
}
"""The planners with offloading by name."""


@dataclass(frozen=True)
class OffloadResult:
    """A simulated schedule within the memory of the device and of the host.

    - `family_bound`, `deterministic`: as in `OffloadFinding`.
    - `seconds`: the wall time of planning.
    """

    schedule: OffloadSchedule
    simulation: OffloadSimulation
    family_bound: float | None
    planner: str
    seconds: float
    deterministic: bool


def solve_offload(
    graph: RematGraph,
    host: Host,
    budget_bytes: int,
    planner: str,
    time_limit_seconds: float = 10.0,
    seed: int = 0,
    *,
    planned_seconds: float | None = None,
    method: OffloadMethod | None = None,
) -> OffloadResult:
    """Returns a schedule of `graph` with at most `budget_bytes` on the device, in little time.

    `planned_seconds` is by default half of the time limit. `fastsa` derives its number of moves
    from it; its result is the same in each run unless it reaches the time limit first. The clock
    ends the integer programs. `method` is how the planner finds a schedule, by default with its
    usual parameters.

    Raises `kiwi.errors.UnknownPlannerError`; `kiwi.errors.InvalidArgumentError`;
    `kiwi.errors.InvalidProblemError` if the planner cannot take the graph; and
    `kiwi.errors.InfeasibleBudgetError` with the smallest peak known if no schedule was found.
    """
    if planner not in OFFLOAD_PLANNERS:
        raise UnknownPlannerError(
            f"there is no planner {planner!r} that offloads",
            suggestion=f"one of {', '.join(sorted(OFFLOAD_PLANNERS))}",
        )
    if budget_bytes <= 0 or not time_limit_seconds > 0:
        raise InvalidArgumentError(
            "the budget and the time limit must be positive", topic=topics.OUT_OF_RANGE
        )
    method = method or OFFLOAD_PLANNERS[planner]
    method.warm_up()
    started = time.monotonic()
    planned = planned_seconds or time_limit_seconds / 2
    task = Task(graph, budget_bytes, started + time_limit_seconds, planned, seed)
    finding = method.find(task, host)
    simulated = None if finding.schedule is None else simulate(graph, host, finding.schedule)
    if finding.schedule is None or simulated is None or not fits(task, host, simulated):
        raise _infeasible(task, planner, finding, simulated)
    return OffloadResult(
        finding.schedule,
        simulated,
        finding.family_bound,
        planner,
        time.monotonic() - started,
        finding.deterministic,
    )


def _infeasible(
    task: Task, planner: str, finding: OffloadFinding, found: OffloadSimulation | None
) -> InfeasibleBudgetError:
    known = [order_peak_bytes(task.graph), *([] if found is None else [found.peak_bytes])]
    bound_bytes = largest_working_set(task.graph).size_bytes - task.graph.resident_bytes
    return InfeasibleBudgetError(
        f"no schedule within {task.budget_bytes} bytes of the device",
        cause=finding.why_none(planner),
        suggestion=f"a budget of {min(known)} bytes, the smallest known to be feasible",
        least_peak_bytes=min(known),
        least_peak_bound_bytes=bound_bytes,
    )
