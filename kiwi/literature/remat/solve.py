"""The common interface of all planners: checks the arguments and simulates the schedule."""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kiwi.errors import (
    InfeasibleBudgetError,
    InvalidArgumentError,
    UnknownPlannerError,
    check_known,
)
from kiwi.literature.remat.best import remat
from kiwi.literature.remat.checkmate import checkmate, checkmate_lp, rk_checkmate
from kiwi.literature.remat.fastsa import fastsa, order_only
from kiwi.literature.remat.graph import RematGraph, single_output_graph
from kiwi.literature.remat.hiremate.levels import hiremate
from kiwi.literature.remat.neighbourhood import moccasin
from kiwi.literature.remat.result import Candidate, Finding, RematResult, Task, candidate
from kiwi.literature.remat.rockmate import rockmate
from kiwi.literature.remat.rotor import rotor
from kiwi.literature.remat.simulate import largest_working_set, order_peak_bytes
from kiwi.messages import topics
from kiwi.solver.result import SolveStatus
from kiwi.solver.schedule import Schedule

Find = Callable[[Task], Finding]


@dataclass(frozen=True)
class Method:
    """A way to find a schedule.

    - `find`: the planner.
    - `compiled`: planners whose compiled loops `find` runs, too. Their first use on a machine
      compiles the loops. This is no part of a search, whose time is limited.
    - `counts_work`: whether a count of moves or tries, or nothing, ends the search instead of the
      clock.
    """

    find: Find
    compiled: tuple[Find, ...] = ()
    counts_work: bool = False

    def warm_up(self) -> None:
        """Makes the compiled loops ready, once in a process."""
        for find in self.compiled:
            _run_once(find)


@functools.cache
def _run_once(find: Find) -> None:
    """Compiles the loops of a planner: plans a graph of one forward and one backward operator."""
    graph = single_output_graph([1.0, 1.0], [1, 1], [(0, 1)], backward_of=((0, 1),))
    find(Task(graph, 2, math.inf, 1e-6, 0))


def keep_all(task: Task) -> Finding:
    """Returns the given order, without recomputation."""
    return Finding(Schedule(task.graph.order))


PLANNERS: dict[str, Method] = {
    "checkmate": Method(checkmate),
    "checkmate-lp": Method(checkmate_lp),
    "fastsa": Method(fastsa, (fastsa,), counts_work=True),
    "hiremate": Method(hiremate, (fastsa, rotor)),
    "keep-all": Method(keep_all, counts_work=True),
    "moccasin": Method(moccasin, counts_work=True),
    "order-only": Method(order_only, (fastsa,), counts_work=True),
    "remat": Method(remat, (fastsa,), counts_work=True),
    "rk-checkmate": Method(rk_checkmate),
    "rockmate": Method(rockmate, (rotor,)),
    "rotor": Method(rotor, (rotor,), counts_work=True),
}
"""The planners by name."""
DEFAULT_PLANNER = "remat"
CHAIN_PLANNER = "rotor"
"""The planner that finds small peaks of large graphs quickly, if a backward part is known."""
LEAST_SHARE, LEAST_SECONDS = 0.1, 0.5
"""After a planner has failed, the search for a feasible budget gets this share of the time limit,
but at least this number of seconds."""
LATEST = 4.0
"""The search for a feasible budget may take this multiple of its time on a slow machine."""


def solve(
    graph: RematGraph,
    budget_bytes: int,
    planner: str = DEFAULT_PLANNER,
    time_limit_seconds: float = 10.0,
    seed: int = 0,
    *,
    planned_seconds: float | None = None,
) -> RematResult:
    """Returns a schedule of `graph` whose peak is at most `budget_bytes`, in little time.

    The time limit is for the search. Compiling the planner's inner loops, once per machine, is not
    counted (`Method.warm_up`). `planned_seconds` is by default the time limit. Planners that count
    their work derive its amount from `planned_seconds`; their result is the same in each run unless
    they reach the time limit first. The clock ends all other planners after `planned_seconds`.

    Raises:

    - `kiwi.errors.UnknownPlannerError`, `kiwi.errors.InvalidArgumentError`.
    - `kiwi.errors.InfeasibleBudgetError` if no schedule was found. The error names the smallest
      peak that is known to be feasible. This is the peak of the given order, of the planner's
      schedule, or of a schedule that `remat` or `rotor` finds in a short search beyond the time
      limit. The error also names the largest working set, below which no schedule exists.
    """
    search = Search(graph, planner, time_limit_seconds, planned_seconds)
    return search.within(budget_bytes, seed)


@dataclass
class Search:
    """Searches in one graph under one budget after another; `remat` continues where it ended.

    **Arguments:** as in `solve`; the time limit holds for each search. `method` is how the planner
    finds a schedule, by default with its usual parameters.
    """

    graph: RematGraph
    planner: str = DEFAULT_PLANNER
    time_limit_seconds: float = 10.0
    planned_seconds: float | None = None
    method: Method | None = None
    _last: Schedule | None = field(default=None, init=False)

    def within(self, budget_bytes: int, seed: int = 0) -> RematResult:
        """Returns a schedule whose peak is at most `budget_bytes`, as `solve` finds it; raises as
        `solve`."""
        graph, planner, limit = self.graph, self.planner, self.time_limit_seconds
        _check_arguments(planner, budget_bytes, limit, seed)
        method = self.method or PLANNERS[planner]
        method.warm_up()
        started = time.monotonic()
        planned = min(limit, self.planned_seconds or limit)
        ends = started + (limit if method.counts_work else planned)
        task = Task(graph, budget_bytes, ends, planned, seed, self._last)
        # A budget below the bound is replaced by the bound, so that the planner still looks for the
        # smallest peak, which the error names.
        sought_bytes = max(budget_bytes, largest_working_set(graph).size_bytes)
        finding = method.find(replace(task, budget_bytes=sought_bytes))
        self._last = finding.schedule or self._last
        simulated = None if finding.schedule is None else candidate(task, finding.schedule)
        if simulated is None or not simulated.fits:
            raise _infeasible(task, planner, finding, simulated)
        return RematResult(
            schedule=simulated.schedule,
            peak_bytes=simulated.peak_bytes,
            compute_seconds=simulated.seconds,
            bound_seconds=graph.once_seconds,
            family_bound_seconds=finding.family_bound,
            status=SolveStatus.OPTIMAL if simulated.is_least else SolveStatus.FEASIBLE,
            planner=planner,
            seconds=time.monotonic() - started,
            iterations=finding.iterations,
            deterministic=finding.deterministic,
        )


def _check_arguments(planner: str, budget_bytes: int, time_limit_seconds: float, seed: int) -> None:
    check_known(planner, PLANNERS, "planner", UnknownPlannerError)
    if budget_bytes <= 0:
        raise InvalidArgumentError(
            f"the budget must be positive, not {budget_bytes} bytes", topic=topics.OUT_OF_RANGE
        )
    if not time_limit_seconds > 0:
        raise InvalidArgumentError(
            f"the time limit must be positive, not {time_limit_seconds} s",
            topic=topics.OUT_OF_RANGE,
        )
    if seed < 0:
        raise InvalidArgumentError(
            f"the seed must not be negative: {seed}", topic=topics.OUT_OF_RANGE
        )


def _infeasible(
    task: Task, planner: str, finding: Finding, found: Candidate | None
) -> InfeasibleBudgetError:
    least_bytes, by = _least_known(task, planner, found)
    bound = largest_working_set(task.graph)
    operators = task.graph.operators
    name = operators[bound.operator].name if bound.operator >= 0 else "the end of the step"
    cause = finding.why_none(planner)
    if task.budget_bytes < bound.size_bytes:
        cause = "the budget is below the largest working set"
    return InfeasibleBudgetError(
        f"no schedule within {task.budget_bytes} bytes",
        cause=f"{cause}. Every schedule needs {bound.size_bytes} bytes at least ({name})",
        suggestion=f"a budget of {least_bytes} bytes, the smallest known to be feasible (by {by})",
        least_peak_bytes=least_bytes,
        least_peak_bound_bytes=bound.size_bytes,
    )


def _least_known(task: Task, planner: str, found: Candidate | None) -> tuple[int, str]:
    """Returns the smallest peak known, and the name of its planner."""
    graph = task.graph
    known = [(order_peak_bytes(graph), "the given order")]
    known += [] if found is None else [(found.peak_bytes, planner)]
    # Other planners end with a proof or with nothing: short searches say which budget is feasible.
    others = {DEFAULT_PLANNER, *((CHAIN_PLANNER,) if graph.backward_of else ())} - {planner}
    known += [(_least_found(task, other), other) for other in sorted(others)]
    return min(known, key=lambda peak_and_planner: peak_and_planner[0])


def _least_found(task: Task, planner: str) -> int:
    """Returns the smallest peak that a planner finds in a small part of the time.

    The planner must be one that counts its work.
    """
    PLANNERS[planner].warm_up()
    graph, seconds = task.graph, max(LEAST_SECONDS, LEAST_SHARE * task.time_limit_seconds)
    bound_bytes = largest_working_set(graph).size_bytes
    ends = time.monotonic() + LATEST * seconds
    finding = PLANNERS[planner].find(Task(graph, bound_bytes, ends, seconds, task.seed))
    return candidate(task, finding.schedule or Schedule(graph.order)).peak_bytes
