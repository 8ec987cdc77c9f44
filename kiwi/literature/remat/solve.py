"""One interface to all planners: checks the question, simulates the answer."""

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

    `compiled`: planners with compiled loops that `find` runs, too. Compiling takes ten seconds at
    the first use on a machine. That is no part of a search, whose time is limited.

    `counts_work`: whether moves, tries or nothing end the search, and not the clock.
    """

    find: Find
    compiled: tuple[Find, ...] = ()
    counts_work: bool = False

    def warm_up(self) -> None:
        """Makes the compiled loops ready, once in a process."""
        for each in self.compiled:
            _run_once(each)


@functools.cache
def _run_once(find: Find) -> None:
    """Plans for two operators, the second the backward operator of the first, in few moves."""
    graph = single_output_graph([1.0, 1.0], [1, 1], [(0, 1)], backward_of=((0, 1),))
    find(Task(graph, 2, math.inf, 1e-6, 0))


def keep_all(task: Task) -> Finding:
    """The given order, without recomputation."""
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
DEFAULT_PLANNER = "remat"
CHAIN_PLANNER = "rotor"
"""A planner that finds small peaks of large graphs quickly, if a backward part is known."""
LEAST_SHARE, LEAST_SECONDS = 0.1, 0.5
"""For which a feasible budget is looked for after a planner failed: of the time limit, at least."""
LATEST = 4.0
"""The factor by which that planner may be late on a slow machine."""


def solve(
    graph: RematGraph,
    budget_bytes: int,
    planner: str = DEFAULT_PLANNER,
    time_limit_seconds: float = 10.0,
    seed: int = 0,
    *,
    planned_seconds: float | None = None,
) -> RematResult:
    """A schedule of `graph` whose peak is at most `budget_bytes`, in little time.

    The time limit is for the search; compiling the planner's inner loops, once per machine,
    is not counted (`Method.warm_up`). `planned_seconds`: by which planners that count their work
    plan it, by default the time limit; they find the same unless they reach that first. The clock
    ends the others after `planned_seconds`.

    Raises:

    - `kiwi.errors.UnknownPlannerError`, `kiwi.errors.InvalidArgumentError`.
    - `kiwi.errors.InfeasibleBudgetError` if no schedule was found. It names the smallest peak
      that is known to be feasible (of the given order, of what the planner found, or of short
      searches by `remat` and `rotor` beyond the time limit) and the largest working set, below
      which none exists.
    """
    search = Search(graph, planner, time_limit_seconds, planned_seconds)
    return search.within(budget_bytes, seed)


@dataclass
class Search:
    """Searches in one graph under one budget after another; `remat` goes on where the last ended.

    **Arguments:** as of `solve`; the time limit is that of each search. `method`: how the planner
    finds a schedule, by default with its usual parameters.
    """

    graph: RematGraph
    planner: str = DEFAULT_PLANNER
    time_limit_seconds: float = 10.0
    planned_seconds: float | None = None
    method: Method | None = None
    _last: Schedule | None = field(default=None, init=False)

    def within(self, budget_bytes: int, seed: int = 0) -> RematResult:
        """A schedule whose peak is at most `budget_bytes`, as `solve` finds it."""
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
        found = None if finding.schedule is None else candidate(task, finding.schedule)
        if found is None or not found.fits:
            raise _infeasible(task, planner, finding, found)
        return RematResult(
            schedule=found.schedule,
            peak_bytes=found.peak_bytes,
            compute_seconds=found.seconds,
            bound_seconds=graph.once_seconds,
            family_bound_seconds=finding.family_bound,
            status=SolveStatus.OPTIMAL if found.is_least else SolveStatus.FEASIBLE,
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
    """The smallest peak known, and who has it."""
    graph = task.graph
    known = [(order_peak_bytes(graph), "the given order")]
    known += [] if found is None else [(found.peak_bytes, planner)]
    # Others end with a proof, or with nothing: short searches say what would be possible.
    others = {DEFAULT_PLANNER, *((CHAIN_PLANNER,) if graph.backward_of else ())} - {planner}
    known += [(_least_found(task, other), other) for other in sorted(others)]
    return min(known, key=lambda each: each[0])


def _least_found(task: Task, planner: str) -> int:
    """The smallest peak that a planner, of those that count their work, finds in a small part of
    the time."""
    PLANNERS[planner].warm_up()
    graph, seconds = task.graph, max(LEAST_SECONDS, LEAST_SHARE * task.time_limit_seconds)
    bound_bytes = largest_working_set(graph).size_bytes
    ends = time.monotonic() + LATEST * seconds
    found = PLANNERS[planner].find(Task(graph, bound_bytes, ends, seconds, task.seed))
    return candidate(task, found.schedule or Schedule(graph.order)).peak_bytes
