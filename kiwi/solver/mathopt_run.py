"""Solves a MathOpt model with Gurobi or a solver of OR-tools. Ctrl-C interrupts the solver.

Gurobi is called through gurobipy, if that is installed. The wheel of gurobipy includes a licence
for at most 2000 variables and 2000 constraints.
"""

import contextlib
import datetime
import functools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from ortools.math_opt.python import mathopt
from ortools.util.python.solve_interrupter import SolveInterrupter

from kiwi.errors import SolverUnavailableError
from kiwi.messages import topics

STDOUT = 1
_lock = threading.Lock()
_depth = 0
_original = -1


Hint = Mapping[mathopt.Variable, float] | None
"""The values of the variables with which the solver starts, or None."""

_GRACE_SECONDS = 0.5
"""The seconds beyond the time limit after which a solver is interrupted, and the seconds after that
in which it must end. Then it is abandoned."""

_SOLVER_TYPES = {
    "highs": mathopt.SolverType.HIGHS,
    "cp-sat": mathopt.SolverType.CP_SAT,
    "scip": mathopt.SolverType.GSCIP,
}
MODEL_SOLVERS = (*_SOLVER_TYPES, "gurobi")
"""The solvers of `solve_model`."""


@dataclass(frozen=True, eq=False)
class MilpAnswer:
    """A solver's answer for a model.

    - `values`: the value of each variable; None if no solution was found.
    - `bound`: the proven bound in the units of the model's objective; +inf if the model is
      infeasible, -inf if there is no bound.
    - `timed_out`: whether the clock ended the search.
    - `nodes`: the number of nodes of the search tree that were visited; 0 if the solver does not
      report it.
    """

    values: Mapping[mathopt.Variable, float] | None
    bound: float
    timed_out: bool
    nodes: int = 0

    @property
    def infeasible(self) -> bool:
        """Whether the model is proven to have no solution."""
        return self.bound == math.inf


def solve_model(
    model: mathopt.Model,
    seconds: float,
    seed: int,
    gap: float,
    hint: Hint = None,
    *,
    solver: str = "highs",
    tree_nodes: int | None = None,
) -> MilpAnswer:
    """Solves `model` with one of `MODEL_SOLVERS`, whose output to standard output are discarded.

    - `seconds`: the time limit. `gap`: the relative gap at which the solver may end.
    - `hint`: see `Hint`.
    - `tree_nodes`: the largest number of nodes of its tree that the solver visits, so that work and
      not the clock ends its search. Gurobi ignores it.

    **Raises:** `SolverUnavailableError` if the solver is missing or refuses the model.
    """
    settings = (max(seconds, 0.01), seed % (1 << 30), gap, hint)
    with quiet_stdout():
        if solver == "gurobi":
            return _solve_with_gurobi(model, *settings)
        return _solve_with_mathopt(model, *settings, solver, tree_nodes)


def _solve_with_mathopt(
    model: mathopt.Model,
    seconds: float,
    seed: int,
    gap: float,
    hint: Hint,
    solver: str,
    tree_nodes: int | None,
) -> MilpAnswer:
    parameters = mathopt.SolveParameters(
        time_limit=datetime.timedelta(seconds=seconds),
        random_seed=seed,
        relative_gap_tolerance=gap,
        threads=1 if solver == "scip" else None,
        node_limit=tree_nodes,
    )
    if solver == "cp-sat":  # Strategies take fixed turns. A race of threads is not repeatable.
        parameters.cp_sat.num_workers = 8
        parameters.cp_sat.interleave_search = True
    hints = [] if hint is None else [mathopt.SolutionHint(variable_values=dict(hint))]
    interrupter = SolveInterrupter()
    call = functools.partial(
        mathopt.solve,
        model,
        _SOLVER_TYPES[solver],
        params=parameters,
        model_params=mathopt.ModelSolveParameters(solution_hints=hints),
        interrupter=None if solver == "scip" else interrupter,  # SCIP's event handler fails.
    )
    future = _in_thread(call)  # Native code in this thread would delay Ctrl-C.
    try:
        return _answer(_awaited(future, seconds, interrupter))
    except TimeoutError:
        return MilpAnswer(None, -math.inf, True)
    except KeyboardInterrupt:
        interrupter.interrupt()
        raise
    except Exception as error:  # MathOpt passes on any exception of its binding.
        raise SolverUnavailableError(
            f"The solver {solver!r} failed: {error}",
            topic=topics.SOLVER_FAILED,
            cause="it does not take this model, or is not part of this OR-tools",
            suggestion='use solver="auto"',
        ) from error


def _in_thread(call: Callable[[], mathopt.SolveResult]) -> "Future[mathopt.SolveResult]":
    """Runs `call` in a daemon thread, and returns its future."""
    future: Future[mathopt.SolveResult] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _awaited(
    future: "Future[mathopt.SolveResult]", seconds: float, interrupter: SolveInterrupter
) -> mathopt.SolveResult:
    """Returns the result. The conversion of the model for the solver counts as its time.

    **Raises:** `TimeoutError` if the solver neither keeps its time limit nor obeys the
    interruption. It is abandoned then.
    """
    try:
        return future.result(seconds + _GRACE_SECONDS)
    except TimeoutError:
        interrupter.interrupt()
        return future.result(_GRACE_SECONDS)


def _answer(result: mathopt.SolveResult) -> MilpAnswer:
    timed_out = result.termination.limit == mathopt.Limit.TIME
    nodes = result.solve_stats.node_count
    if result.termination.reason == mathopt.TerminationReason.INFEASIBLE:
        return MilpAnswer(None, math.inf, timed_out, nodes)
    bound = result.termination.objective_bounds.dual_bound
    values = result.variable_values() if result.has_primal_feasible_solution() else None
    return MilpAnswer(values, bound if math.isfinite(bound) else -math.inf, timed_out, nodes)


def _solve_with_gurobi(
    model: mathopt.Model, seconds: float, seed: int, gap: float, hint: Hint
) -> MilpAnswer:
    """Solves a minimisation without quadratic terms with Gurobi."""
    try:
        import gurobipy
    except ImportError as error:
        raise SolverUnavailableError(
            "gurobipy is not installed.", topic=topics.SOLVER_MISSING
        ) from error
    try:
        with gurobipy.Env(params={"OutputFlag": 0}) as env, gurobipy.Model(env=env) as copy:
            variables = _copy_model(gurobipy, model, copy, hint)
            copy.Params.TimeLimit = seconds
            copy.Params.Seed = seed
            copy.Params.MIPGap = gap
            copy.Params.Threads = 1
            copy.optimize()
            return _gurobi_answer(gurobipy, copy, variables)
    except gurobipy.GurobiError as error:
        raise SolverUnavailableError(
            f"Gurobi declined: {error}",
            topic=topics.SOLVER_FAILED,
            cause="the licence does not fit the model",
            suggestion='install a full licence, or use solver="auto"',
        ) from error


def _copy_model(gurobipy, model, copy, hint):
    variables = {}
    for variable in model.variables():
        kind = gurobipy.GRB.INTEGER if variable.integer else gurobipy.GRB.CONTINUOUS
        twin = copy.addVar(lb=variable.lower_bound, ub=variable.upper_bound, vtype=kind)
        if hint is not None and variable in hint:
            twin.Start = hint[variable]
        variables[variable] = twin
    for row in model.linear_constraints():
        terms = [(row.get_coefficient(v), variables[v]) for v in model.row_nonzeros(row)]
        left = gurobipy.LinExpr(terms)
        if row.lower_bound == row.upper_bound:
            copy.addLConstr(left, gurobipy.GRB.EQUAL, row.upper_bound)
            continue
        if math.isfinite(row.upper_bound):
            copy.addLConstr(left, gurobipy.GRB.LESS_EQUAL, row.upper_bound)
        if math.isfinite(row.lower_bound):
            copy.addLConstr(left, gurobipy.GRB.GREATER_EQUAL, row.lower_bound)
    objective = model.objective
    costs = [(term.coefficient, variables[term.variable]) for term in objective.linear_terms()]
    copy.setObjective(gurobipy.LinExpr(costs) + objective.offset, gurobipy.GRB.MINIMIZE)
    return variables


def _gurobi_answer(gurobipy, copy, variables) -> MilpAnswer:
    if copy.Status == gurobipy.GRB.INFEASIBLE:
        return MilpAnswer(None, math.inf, False)
    timed_out = copy.Status == gurobipy.GRB.TIME_LIMIT
    values = {variable: twin.X for variable, twin in variables.items()} if copy.SolCount else None
    return MilpAnswer(values, float(copy.ObjBound), timed_out)


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """A context in which output to file descriptor 1 is discarded. Threads may use it at the same
    time.

    HiGHS prints some remarks with `printf`, which MathOpt's switch for output does not suppress.
    They would corrupt the output of programs that write JSON to standard output.
    """
    global _depth, _original
    with _lock:
        if not _depth:
            sys.stdout.flush()
            _original = os.dup(STDOUT)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, STDOUT)
            os.close(nowhere)
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                os.dup2(_original, STDOUT)
                os.close(_original)
