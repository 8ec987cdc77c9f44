"""A MathOpt model solved by Gurobi or one of the solvers in OR-tools, interruptible by Ctrl-C."""

import datetime
import functools
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future

from ortools.math_opt.python import mathopt
from ortools.util.python.solve_interrupter import SolveInterrupter

from kiwi.errors import SolverUnavailableError
from kiwi.solver.answer import Hint, MilpAnswer
from kiwi.solver.gurobi import solve_with_gurobi
from kiwi.solver.quiet import quiet_stdout

_GRACE_SECONDS = 0.5
"""How long a solver may be late before it is interrupted, and then before it is left alone."""

_SOLVER_TYPES = {
    "highs": mathopt.SolverType.HIGHS,
    "cp-sat": mathopt.SolverType.CP_SAT,
    "scip": mathopt.SolverType.GSCIP,
}
MODEL_SOLVERS = (*_SOLVER_TYPES, "gurobi")
"""What `solve_model` takes."""


def solve_model(
    model: mathopt.Model,
    seconds: float,
    seed: int,
    gap: float,
    hint: Hint = None,
    *,
    solver: str = "highs",
) -> MilpAnswer:
    """Solves `model` with one of `MODEL_SOLVERS`, kept off standard output.

    Raises `SolverUnavailableError` where the solver is missing or refuses the model.
    """
    settings = (max(seconds, 0.01), seed % (1 << 30), gap, hint)
    with quiet_stdout():
        if solver == "gurobi":
            return solve_with_gurobi(model, *settings)
        return _solve_with_mathopt(model, *settings, solver)


def _solve_with_mathopt(
    model: mathopt.Model, seconds: float, seed: int, gap: float, hint: Hint, solver: str
) -> MilpAnswer:
    parameters = mathopt.SolveParameters(
        time_limit=datetime.timedelta(seconds=seconds),
        random_seed=seed,
        relative_gap_tolerance=gap,
        threads=1 if solver == "scip" else None,
    )
    if solver == "cp-sat":  # several strategies in a fixed rotation: repeatable, unlike a race
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
        interrupter=None if solver == "scip" else interrupter,  # its event handler fails
    )
    future = _in_thread(call)  # native code in this thread would hold Ctrl-C back
    try:
        return _answer(_awaited(future, seconds, interrupter))
    except TimeoutError:
        return MilpAnswer(None, -math.inf, True)
    except KeyboardInterrupt:
        interrupter.interrupt()
        raise
    except Exception as error:  # MathOpt lets whatever its binding raises through
        raise SolverUnavailableError(
            f"The solver {solver!r} failed: {error}",
            cause="it does not take this model, or is not part of this OR-tools",
            suggestion='use solver="auto"',
        ) from error


def _in_thread(call: Callable[[], mathopt.SolveResult]) -> "Future[mathopt.SolveResult]":
    """Runs `call` in a thread that nothing waits for."""
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
    """The result, or `TimeoutError` where the solver keeps neither its time limit nor heeds the
    interruption: it is left alone then. Writing the model for it counts as its time."""
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
