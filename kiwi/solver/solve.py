"""`solve`, and the solvers that it selects by name."""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from kiwi.errors import SolverUnavailableError, UnknownSolverError, check_known
from kiwi.messages import topics
from kiwi.solver.evaluate import evaluate
from kiwi.solver.lagrangian import Search
from kiwi.solver.loads.solve import solve_with_loads
from kiwi.solver.milp import solve_network
from kiwi.solver.parts import may_ask_milp, tree_nodes
from kiwi.solver.problem import Problem
from kiwi.solver.request import Request
from kiwi.solver.restarts import search_again
from kiwi.solver.result import INTERRUPTED, Balances, OnProgress, SolveResult, conclude
from kiwi.solver.toulbar import TOULBAR_ROUNDS, ToulbarEngine
from kiwi.solver.warm_up import warm_up
from kiwi.timings import timed

DEFAULT_GAP = 1e-3
"""The relative gap at which a search may end by default."""
MOST_CELLS_FOR_MILP = 60_000
"""The largest number of options and table cells of the remaining network that `auto` hands to a
MILP when the gap is open."""
MOST_ASSIGNMENTS = 2_000_000
"""The largest number of assignments that brute force tries, a matter of minutes. It raises
`SolverUnavailableError` for more."""


@timed("solve")
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
    work_limit: int | None = None,
    balances: Balances | None = None,
) -> SolveResult:
    """Chooses one option per node at the least cost under the memory limit.

    - `solver`: one of `SOLVERS`.
    - `time_limit_seconds`: the search returns its best solution at about this time. The compilation
      of the inner loops, once per machine, does not count (`kiwi.solver.warm_up`). `auto` and
      `lagrangian` run at least `kiwi.solver.lagrangian.LEAST_ROUNDS` rounds if there is no warm
      start.
    - `seed`: equal problems and seeds give equal solutions, unless the clock ended the search
      (`SolveResult.deterministic`).
    - `warm_start`: a solution with which the search begins. The result is never worse.
    - `on_progress`: called with a `Progress` when the solution or the bound improves, and with the
      result. Some solvers report only the result.
    - `gap`: the search may end once (objective - bound) / |objective| is at most this.
    - `until_time_limit`: whether the search goes on until the time limit while the gap is open. By
      default it also ends when it no longer gains.
    - `any_time`: whether Ctrl-C ends the search with the best solution so far, instead of raising
      `KeyboardInterrupt`.
    - `round_limit`: the number of rounds (`SolveResult.iterations`) after which the search ends;
      nothing is handed to a MILP then. Equal seeds and round limits give equal solutions on every
      machine, unless the time limit is reached. Only `auto` and `lagrangian` honour it.
    - `work_limit`: the work (`SolveResult.work`) after which the search ends. Equal seeds and work
      limits give equal solutions on every machine, unless the time limit is reached. Only the
      solvers in `COUNT_WORK` honour it.
    - `balances`: the `SolveResult.balances` of a problem with the same windows, with which the
      search for the weights of channels begins.

    Returns a `SolveResult`, whose solution was priced by `kiwi.solver.evaluate`.

    **Raises:** `UnknownSolverError`; `InvalidArgumentError` if an argument is out of range;
    `SolverUnavailableError` if the solver cannot take the problem.
    """
    check_known(solver, SOLVERS, "solver", UnknownSolverError)
    request = Request(
        problem,
        solver,
        time_limit_seconds,
        seed,
        gap,
        tuple(warm_start) if warm_start is not None else None,
        on_progress,
        until_time_limit,
        any_time,
        round_limit,
        work_limit=work_limit,
        balances=balances,
    )
    if solver != "brute-force":
        warm_up()
    request = replace(request, started=time.monotonic())
    nothing = conclude(problem, (), 0.0, solver=solver)
    method = SOLVERS[solver]
    loads = any(part.loads for part in (*problem.nodes, *problem.edges))
    if loads and solver != "brute-force":  # The referee, by which brute force prices, knows loads.
        unclosed = SOLVERS[UNCLOSED.get(solver, solver)]
        method = partial(solve_with_loads, solver=method, unclosed=unclosed)
    result = method(request) if problem.nodes else nothing
    result = replace(result, seconds=time.monotonic() - request.started)
    if on_progress is not None:
        on_progress(result)
    return result


def _searched(name: str, method: Callable[[Search], str], request: Request) -> SolveResult:
    """Runs `method` on a new search for the request. `name`: the backend's name in the result."""
    search, message = Search(request, name), ""
    try:
        if not search.left.infeasible:
            message = method(search)
    except KeyboardInterrupt:
        if not request.any_time:
            raise
        search.take_unfinished()
        search.out_of_time, message = True, INTERRUPTED
    return search.result(message)


def _lagrangian(search: Search, *, close: bool = False) -> str:
    """Runs the Lagrangian search; returns a message. With `close`, a remaining network that is
    small enough goes to a MILP if the gap is open."""
    request, message = search.request, ""
    search.run()
    if request.round_limit is not None:
        return ""
    if close:
        message = _close(search)
    if request.until_time_limit:
        search.linger()
    return message


def _close(search: Search) -> str:
    """Hands the remaining network to a MILP if it is small enough, and searches again if the gap is
    still far open. Returns a message."""
    message = _ask_for_rest(search)
    if search.request.until_time_limit or not search.is_far():
        return message
    search_again(search)
    return message or _ask_for_rest(search)


def _ask_for_rest(search: Search) -> str:
    net, request = search.left.net, search.request
    if search.settled or net.size > MOST_CELLS_FOR_MILP or not may_ask_milp(search, net):
        return ""
    most_nodes = None if request.until_time_limit else tree_nodes(net)
    _ask_milp(search, request.handed_to_highs(most_nodes))
    return f"HiGHS went on with the {net.option_count} options that were left."


def _ask_milp(search: Search, request: Request, hint: np.ndarray | None = None) -> None:
    choice, bound, timed_out = solve_network(search.left.net, request, hint)
    search.offer_lifted(choice)
    search.raise_bound(bound)
    search.out_of_time = search.out_of_time or timed_out


def _milp(search: Search) -> str:
    """Solves the MILP of the presolved network; returns no message."""
    search.rounds = 1
    _ask_milp(search, replace(search.request, solver=search.solver), search.lowered())
    return ""


def _gurobi(search: Search) -> str:
    try:
        return _milp(search)
    except SolverUnavailableError as error:
        search.solver = "highs"
        _milp(search)
        reason = error.what.splitlines()[0]
        return f"Gurobi could not be used, HiGHS stood in. {reason}"


def _toulbar2(search: Search) -> str:
    search.run_engine(*TOULBAR_ROUNDS, force=False, kind=ToulbarEngine)
    return ""


def _brute_force(request: Request) -> SolveResult:
    """Returns the first of the cheapest assignments. This is the oracle of the other solvers'
    tests."""
    problem = request.problem
    sizes = [node.costs.size for node in problem.nodes]
    count = math.prod(sizes)
    if count > MOST_ASSIGNMENTS:
        raise SolverUnavailableError(
            f"Brute force over {count:.3g} assignments was declined.",
            topic=topics.SOLVER_FAILED,
            cause=f"it is an oracle for problems of at most {MOST_ASSIGNMENTS} assignments",
            suggestion='use solver="auto"',
        )
    best, best_cost, least_peak = None, math.inf, None
    for solution in itertools.product(*(range(size) for size in sizes)):
        priced = evaluate(problem, solution)
        if priced.feasible and priced.cost < best_cost:
            best, best_cost = solution, priced.cost
        if math.isfinite(priced.cost):
            peak = priced.peak_bytes
            least_peak = peak if least_peak is None else min(least_peak, peak)
    return conclude(
        problem,
        best,
        best_cost,
        solver=request.solver,
        iterations=count,
        least_peak_bytes=least_peak,
        least_peak_bound_bytes=least_peak,
    )


SOLVERS: dict[str, Callable[[Request], SolveResult]] = {
    "auto": partial(_searched, "lagrangian", partial(_lagrangian, close=True)),
    "lagrangian": partial(_searched, "lagrangian", _lagrangian),
    "toulbar2": partial(_searched, "toulbar2", _toulbar2),
    "milp": partial(_searched, "highs", _milp),
    "highs": partial(_searched, "highs", _milp),
    "cp-sat": partial(_searched, "cp-sat", _milp),
    "scip": partial(_searched, "scip", _milp),
    "gurobi": partial(_searched, "gurobi", _gurobi),
    "brute-force": _brute_force,
}
"""The solvers by name."""
UNCLOSED = {"auto": "lagrangian"}
"""By the name of a solver that hands an open gap to another solver, the name of the solver without
that step."""
COUNT_WORK = frozenset({"auto", "lagrangian", "toulbar2", "brute-force"})
"""The solvers that end by work or rounds. The clock ends the others."""
