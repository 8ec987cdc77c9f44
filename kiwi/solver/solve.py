"""The way in: one function, several solvers by name."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kiwi.errors import InvalidArgumentError, SolverUnavailableError, UnknownSolverError
from kiwi.solver.brute_force import solve_brute_force
from kiwi.solver.lagrangian import Search
from kiwi.solver.milp import solve_milp, solve_network
from kiwi.solver.outcome import OnProgress, conclude
from kiwi.solver.problem import Problem
from kiwi.solver.result import (
    Progress,
    SolveResult,
)
from kiwi.solver.toulbar import solve_toulbar
from kiwi.solver.warm_up import warm_up

DEFAULT_GAP = 1e-3
_MILP_SHARE = 0.5
MOST_CELLS_FOR_MILP = 60_000
"""Options and table cells up to which `auto` hands a gap that stays open to a MILP."""


@dataclass(frozen=True)
class Request:
    """What `solve` was asked for, checked: the one argument of every backend.

    `deadline` is a reading of `time.monotonic`.
    """

    problem: Problem
    solver: str
    deadline: float
    seed: int
    gap: float
    warm_start: tuple[int, ...] | None
    on_progress: OnProgress | None
    until_time_limit: bool = False
    any_time: bool = False
    round_limit: int | None = None

    @property
    def seconds_left(self) -> float:
        """Time until the deadline, at least 0."""
        return max(0.0, self.deadline - time.monotonic())


def solve(
    problem: Problem,
    *,
    solver: str = "auto",
    time_limit_seconds: float = 60.0,
    seed: int = 0,
    warm_start: Sequence[int] | None = None,
    on_progress: OnProgress | None = None,
    gap: float = DEFAULT_GAP,
    until_time_limit: bool = False,
    any_time: bool = False,
    round_limit: int | None = None,
) -> SolveResult:
    """Chooses one option per node at the least cost under the memory limit.

    **Arguments:**

    - `solver`: one of `SOLVERS`.
    - `time_limit_seconds`: the search returns its best solution at about this time. Compiling the
      inner loops, once on a machine, does not count (`kiwi.solver.warm_up`). `auto` and
      `lagrangian` without a start end no sooner than `kiwi.solver.lagrangian.LEAST_ROUNDS` rounds.
    - `seed`: same problem, same seed: same solution, unless the clock ended the search
      (`SolveResult.deterministic` says so).
    - `warm_start`: a solution to begin with; it is never made worse.
    - `on_progress`: called with a `Progress` whenever the solution or the bound improves, by the
      solvers that can.
    - `gap`: the search may end once (objective - bound) / objective is at most this.
    - `until_time_limit`: searches on until then where the gap stays open, however little comes of
      it. By default the search also ends when it no longer gets anywhere.
    - `any_time`: on Ctrl-C return the best solution so far, where there is one, instead of raising
      `KeyboardInterrupt`; `auto` and `lagrangian` can.
    - `round_limit`: the search ends after so many rounds (`SolveResult.iterations`), and hands
      nothing to a MILP. The same seed and round limit give the same solution however fast the
      machine is, as long as the time limit is not reached. `auto` and `lagrangian` honour it.

    Every returned solution was priced by `kiwi.solver.evaluate`. Raises `UnknownSolverError`,
    `InvalidArgumentError`, and `SolverUnavailableError` where the solver cannot take the problem.
    """
    _check_arguments(problem, solver, time_limit_seconds, gap, warm_start, round_limit)
    if solver in ("auto", "lagrangian"):
        warm_up()
    started = time.monotonic()
    start = tuple(warm_start) if warm_start is not None else None
    request = Request(
        problem,
        solver,
        started + time_limit_seconds,
        seed,
        gap,
        start,
        on_progress,
        until_time_limit,
        any_time,
        round_limit,
    )
    nothing = conclude(problem, (), 0.0, solver=solver)
    result = SOLVERS[solver](request) if problem.nodes else nothing
    result = replace(result, seconds=time.monotonic() - started)
    if on_progress is not None:
        on_progress(_as_progress(result))
    return result


def _auto(request: Request) -> SolveResult:
    """The Lagrangian search; what it leaves open is closed by a MILP where that is small."""
    return _searched(request, close=True)


def _lagrangian(request: Request) -> SolveResult:
    return _searched(request, close=False)


def _searched(request: Request, *, close: bool) -> SolveResult:
    search = _search(request)
    message = ""
    try:
        search.run()
        if close and request.round_limit is None:
            message = _close(search, request)
        if request.until_time_limit and request.round_limit is None:
            search.linger()
    except KeyboardInterrupt:
        if not request.any_time:
            raise
        search.take_unfinished()
        search.clock_ended, message = True, "Interrupted."
    return search.result(message)


def _close(search: Search, request: Request) -> str:
    """Asks a MILP for what is left, where that is small; returns what to tell about it."""
    net = search.left.net
    small = net.option_count + net.cell_count <= MOST_CELLS_FOR_MILP
    if search.settled or search.left.infeasible or not small or request.seconds_left <= 0:
        return ""
    choice, bound, timed_out = solve_network(
        net,
        solver="highs",
        time_limit_seconds=_MILP_SHARE * request.seconds_left,
        seed=request.seed,
        gap=request.gap,
    )
    if choice is not None:
        search.offer(tuple(search.left.lift(choice).tolist()))
    search.raise_bound(bound)
    search.clock_ended = search.clock_ended or timed_out
    return f"HiGHS went on with the {net.option_count} options that were left."


def _search(request: Request) -> Search:
    search = Search(
        request.problem,
        request.seed,
        request.gap,
        request.deadline,
        request.on_progress,
        round_limit=request.round_limit,
    )
    if request.warm_start is not None:
        search.offer(request.warm_start)
    return search


def _milp(request: Request) -> SolveResult:
    return solve_milp(
        request.problem,
        solver="highs" if request.solver == "milp" else request.solver,
        time_limit_seconds=request.seconds_left,
        seed=request.seed,
        gap=request.gap,
        warm_start=request.warm_start,
    )


def _toulbar2(request: Request) -> SolveResult:
    return solve_toulbar(
        request.problem,
        deadline=request.deadline,
        seed=request.seed,
        gap=request.gap,
        warm_start=request.warm_start,
    )


def _gurobi(request: Request) -> SolveResult:
    try:
        return _milp(request)
    except SolverUnavailableError as error:
        result = _milp(replace(request, solver="highs"))
        reason = error.what.splitlines()[0]
        return replace(result, message=f"Gurobi could not be used, HiGHS stood in. {reason}")


def _brute_force(request: Request) -> SolveResult:
    return solve_brute_force(request.problem)


SOLVERS: dict[str, Callable[[Request], SolveResult]] = {
    "auto": _auto,
    "lagrangian": _lagrangian,
    "toulbar2": _toulbar2,
    "milp": _milp,
    "highs": _milp,
    "cp-sat": _milp,
    "scip": _milp,
    "gurobi": _gurobi,
    "brute-force": _brute_force,
}
"""Backends by name."""


def _check_arguments(
    problem: Problem,
    solver: str,
    time_limit_seconds: float,
    gap: float,
    warm_start: Sequence[int] | None,
    round_limit: int | None,
) -> None:
    if round_limit is not None and round_limit < 1:
        raise InvalidArgumentError(
            f"round_limit is {round_limit}.", suggestion="give 1 or more, or None for no limit"
        )
    if solver not in SOLVERS:
        raise UnknownSolverError(
            f"There is no solver {solver!r}.", suggestion=f"use one of {', '.join(SOLVERS)}"
        )
    if not time_limit_seconds > 0:
        raise InvalidArgumentError(
            f"time_limit_seconds is {time_limit_seconds}.", suggestion="give a positive number"
        )
    if not gap >= 0:
        raise InvalidArgumentError(f"gap is {gap}.", suggestion="give 0 or a small fraction")
    if warm_start is not None and len(warm_start) != len(problem.nodes):
        raise InvalidArgumentError(
            f"warm_start has {len(warm_start)} entries for {len(problem.nodes)} nodes.",
            suggestion="give one option index per node",
        )


def _as_progress(result: SolveResult) -> Progress:
    return Progress(
        result.seconds,
        result.objective,
        result.bound,
        result.peak_bytes,
        result.solver,
        result.iterations,
        result.solution,
    )
