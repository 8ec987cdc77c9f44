"""One interface to all planners: checks the question, simulates the answer."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kiwi.errors import InfeasibleBudgetError, InvalidArgumentError, UnknownPlannerError
from kiwi.solver.remat import fastsa, rotor
from kiwi.solver.remat.best import remat
from kiwi.solver.remat.bounds import largest_working_set, order_peak_bytes
from kiwi.solver.remat.checkmate import checkmate, rk_checkmate
from kiwi.solver.remat.checkmate_lp import checkmate_lp
from kiwi.solver.remat.graph import RematGraph
from kiwi.solver.remat.hiremate.levels import hiremate
from kiwi.solver.remat.moccasin import moccasin
from kiwi.solver.remat.result import Finding, RematResult, Task
from kiwi.solver.remat.rockmate import rockmate
from kiwi.solver.remat.simulate import Simulation, simulate
from kiwi.solver.result import SolveStatus
from kiwi.solver.schedule import Schedule


@dataclass(frozen=True)
class Planner:
    """A way to find a schedule.

    `warm_ups` compile the loops that `find` runs: ten seconds at the first use on a machine, then
    loaded from numba's cache. That is no part of a search, whose time is limited.
    """

    find: Callable[[Task], Finding]
    warm_ups: tuple[Callable[[], None], ...] = ()

    def warm_up(self) -> None:
        """Makes the compiled loops ready, once in a process."""
        for each in self.warm_ups:
            each()


def keep_all(task: Task) -> Finding:
    """The given order, without recomputation."""
    return Finding(Schedule(task.graph.order))


PLANNERS: dict[str, Planner] = {
    "checkmate": Planner(checkmate),
    "checkmate-lp": Planner(checkmate_lp),
    "fastsa": Planner(fastsa.fastsa, (fastsa.warm_up,)),
    "hiremate": Planner(hiremate, (fastsa.warm_up, rotor.warm_up)),
    "keep-all": Planner(keep_all),
    "moccasin": Planner(moccasin),
    "order-only": Planner(fastsa.order_only, (fastsa.warm_up,)),
    "remat": Planner(remat, (fastsa.warm_up,)),
    "rk-checkmate": Planner(rk_checkmate),
    "rockmate": Planner(rockmate, (rotor.warm_up,)),
    "rotor": Planner(rotor.rotor, (rotor.warm_up,)),
}
DEFAULT_PLANNER = "remat"
CHAIN_PLANNER = "rotor"
"""What finds small peaks of large graphs quickly, where a backward part is known."""
LEAST_SHARE, LEAST_SECONDS = 0.1, 0.5
"""For which a feasible budget is looked for after a planner failed: of the time limit, at least."""


def solve(
    graph: RematGraph,
    budget_bytes: int,
    planner: str = DEFAULT_PLANNER,
    time_limit_seconds: float = 10.0,
    seed: int = 0,
) -> RematResult:
    """A schedule of `graph` whose peak is at most `budget_bytes`, in little time.

    The time limit is for the search; compiling the planner's inner loops, once per machine,
    is not counted (`Planner.warm_up`).

    Raises:

    - `kiwi.errors.UnknownPlannerError`, `kiwi.errors.InvalidArgumentError`.
    - `kiwi.errors.InfeasibleBudgetError` if no schedule was found. It names the smallest peak
      that is known to be feasible (of the given order, of what the planner found, or of short
      searches by `remat` and `rotor` beyond the time limit) and the largest working set, below
      which none exists.
    """
    return Search(graph, planner, time_limit_seconds).within(budget_bytes, seed)


class Search:
    """Searches in one graph under one budget after another; `remat` goes on where the last ended.

    **Arguments:** as of `solve`; the time limit is that of each search.
    """

    def __init__(
        self,
        graph: RematGraph,
        planner: str = DEFAULT_PLANNER,
        time_limit_seconds: float = 10.0,
    ) -> None:
        self._graph, self._planner, self._seconds = graph, planner, time_limit_seconds
        self._last: Schedule | None = None

    def within(self, budget_bytes: int, seed: int = 0) -> RematResult:
        """A schedule whose peak is at most `budget_bytes`, as `solve` finds it."""
        graph, planner = self._graph, self._planner
        _check_arguments(planner, budget_bytes, self._seconds, seed)
        PLANNERS[planner].warm_up()
        started = time.monotonic()
        # A budget below the bound is replaced by the bound, so that the planner still looks for the
        # smallest peak, which the error names.
        sought_bytes = max(budget_bytes, largest_working_set(graph).size_bytes)
        deadline = started + self._seconds
        task = Task(graph, sought_bytes, deadline, self._seconds, seed, self._last)
        finding = PLANNERS[planner].find(task)
        self._last = finding.schedule or self._last
        found = simulate(graph, finding.schedule) if finding.schedule is not None else None
        if finding.schedule is None or found is None or found.peak_bytes > budget_bytes:
            raise _infeasible(replace(task, budget_bytes=budget_bytes), planner, finding, found)
        bound = graph.once_seconds
        is_least = found.compute_seconds <= bound * (1 + 1e-12)
        return RematResult(
            schedule=finding.schedule,
            peak_bytes=found.peak_bytes,
            compute_seconds=found.compute_seconds,
            bound_seconds=bound,
            family_bound_seconds=finding.family_bound_seconds,
            status=SolveStatus.OPTIMAL if is_least else SolveStatus.FEASIBLE,
            planner=planner,
            seconds=time.monotonic() - started,
            iterations=finding.iterations,
            deterministic=finding.deterministic,
        )


def _check_arguments(planner: str, budget_bytes: int, time_limit_seconds: float, seed: int) -> None:
    if planner not in PLANNERS:
        raise UnknownPlannerError(
            f"there is no planner {planner!r}", suggestion=f"one of {', '.join(sorted(PLANNERS))}"
        )
    if budget_bytes <= 0:
        raise InvalidArgumentError(f"the budget must be positive, not {budget_bytes} bytes")
    if not time_limit_seconds > 0:
        raise InvalidArgumentError(f"the time limit must be positive, not {time_limit_seconds} s")
    if seed < 0:
        raise InvalidArgumentError(f"the seed must not be negative: {seed}")


def _infeasible(
    task: Task, planner: str, finding: Finding, found: Simulation | None
) -> InfeasibleBudgetError:
    least_bytes, by = _least_known(task, planner, found)
    bound = largest_working_set(task.graph)
    operators = task.graph.operators
    name = operators[bound.operator].name if bound.operator >= 0 else "the end of the step"
    if task.budget_bytes < bound.size_bytes:
        cause = "the budget is below the largest working set"
    elif finding.family_is_infeasible:
        cause = f"proven for the schedules that {planner!r} can express; others may exist"
    else:
        cause = f"planner {planner!r} found none; that is no proof that there is none"
    return InfeasibleBudgetError(
        f"no schedule within {task.budget_bytes} bytes",
        cause=f"{cause}. Every schedule needs {bound.size_bytes} bytes at least ({name})",
        suggestion=f"a budget of {least_bytes} bytes, the smallest known to be feasible (by {by})",
        least_peak_bytes=least_bytes,
        least_peak_bound_bytes=bound.size_bytes,
    )


def _least_known(task: Task, planner: str, found: Simulation | None) -> tuple[int, str]:
    """The smallest peak known, and who has it."""
    graph = task.graph
    known = [(order_peak_bytes(graph), "the given order")]
    known += [] if found is None else [(found.peak_bytes, planner)]
    # Others end with a proof, or with nothing: short searches say what would be possible.
    others = {DEFAULT_PLANNER, *((CHAIN_PLANNER,) if graph.backward_of else ())} - {planner}
    known += [(_least_found(task, other), other) for other in sorted(others)]
    return min(known, key=lambda each: each[0])


def _least_found(task: Task, planner: str) -> int:
    """The smallest peak that a planner finds in a small part of the time limit."""
    PLANNERS[planner].warm_up()
    seconds = max(LEAST_SECONDS, LEAST_SHARE * task.time_limit_seconds)
    bound_bytes = largest_working_set(task.graph).size_bytes
    ends = time.monotonic() + seconds
    short = Task(task.graph, bound_bytes, ends, seconds, task.seed)
    schedule = PLANNERS[planner].find(short).schedule
    return simulate(task.graph, schedule or Schedule(task.graph.order)).peak_bytes
