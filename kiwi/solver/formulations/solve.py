"""The formulations by name, each: how its model is built, solved, and read.

An answer's time and peak come from `price`, which simulates the schedule; a solution whose
simulated peak is over the limit would be a bug, and raises.
"""

import math
import re
import time
from collections.abc import Callable

from kiwi.errors import InvalidProblemError, SolverUnavailableError, UnknownSolverError
from kiwi.solver.answer import MilpAnswer
from kiwi.solver.formulations.answer import Answer, price
from kiwi.solver.formulations.joint import build_joint
from kiwi.solver.formulations.reduced import ReducedModel, build_reduced
from kiwi.solver.formulations.sharded_graph import ShardedGraph
from kiwi.solver.formulations.staged import StagedModel, build_staged
from kiwi.solver.gurobi import solve_with_gurobi
from kiwi.solver.mathopt_run import SOLVER_TYPES, solve_with_mathopt
from kiwi.solver.remat.quiet import quiet_stdout
from kiwi.solver.result import SolveStatus, relative_gap
from kiwi.solver.schedule import Schedule
from kiwi.solver.solve import solve

FAMILIES = {
    "memory": "the memory held while some operator runs",
}
"""Families of rows that a limit alone can violate, in words. All others hold without one."""
DEFAULT_SOLVER = "highs"
PROGRAM_SOLVERS = (*SOLVER_TYPES, "gurobi")
"""Solvers that take the integer programs."""


def solve_formulation(
    graph: ShardedGraph,
    limit_bytes: int,
    formulation: str,
    *,
    solver: str = DEFAULT_SOLVER,
    time_limit_seconds: float = 60.0,
    seed: int = 0,
    gap: float = 1e-6,
) -> Answer:
    """Solves one of `FORMULATIONS` for a limit in bytes.

    **Arguments:**

    - `solver`: "highs", "cp-sat", "scip" or "gurobi" for the integer programs; where Gurobi's
      licence does not fit, HiGHS stands in and the answer's message says so.

    **Raises:** `UnknownSolverError`, `InvalidProblemError`.
    """
    if solver not in PROGRAM_SOLVERS:
        known = ", ".join(repr(s) for s in PROGRAM_SOLVERS)
        raise UnknownSolverError(f"There is no solver {solver!r}.", suggestion=f"One of {known}.")
    if formulation not in FORMULATIONS:
        known = ", ".join(repr(f) for f in FORMULATIONS)
        raise InvalidProblemError(f"No formulation {formulation!r}.", suggestion=f"One of {known}.")
    started = time.monotonic()
    if formulation == "joint":
        return _solve_joint(graph, limit_bytes, started, time_limit_seconds, seed, gap)
    return _solve_program(
        graph, limit_bytes, formulation, solver, started, time_limit_seconds, seed, gap
    )


FORMULATIONS: dict[str, Callable[[ShardedGraph, int], StagedModel | ReducedModel] | None] = {
    "full": build_staged,
    "reduced": build_reduced,
    "joint": None,
}
"""By name the integer program; "joint" is a `Problem`, with solvers of its own."""


def _solve_joint(
    graph: ShardedGraph, limit_bytes: int, started: float, seconds: float, seed: int, gap: float
) -> Answer:
    built = build_joint(graph, limit_bytes)
    result = solve(built.problem, time_limit_seconds=seconds, seed=seed, gap=gap)
    found = None if result.solution is None else built.read_answer(result.solution)
    return _answer(graph, limit_bytes, found, result.bound, result.solver, started, gap, "")


def _solve_program(
    graph: ShardedGraph,
    limit_bytes: int,
    formulation: str,
    solver: str,
    started: float,
    seconds: float,
    seed: int,
    gap: float,
) -> Answer:
    build = FORMULATIONS[formulation]
    assert build is not None
    built, known, hint, message = build(graph, limit_bytes), None, None, ""
    if isinstance(built, StagedModel):
        known = _solve_joint(graph, limit_bytes, started, min(seconds / 4, 5.0), seed, 1e-3)
        if known.schedule is not None:
            hint = built.hint(known.schedule, known.strategies)
    left = max(0.1, seconds - (time.monotonic() - started))
    options = {"time_limit_seconds": left, "seed": seed, "gap": gap, "hint": hint}
    answer = None
    if solver == "gurobi":
        try:
            answer = solve_with_gurobi(built.model, **options)
        except SolverUnavailableError as error:
            solver, message = DEFAULT_SOLVER, f"{error.what} HiGHS stood in."
    if answer is None:
        with quiet_stdout():
            answer = solve_with_mathopt(built.model, solver=solver, **options)
    return _read(built, answer, known, solver, started, gap, message)


def _read(
    built: StagedModel | ReducedModel,
    answer: MilpAnswer,
    known: Answer | None,
    solver: str,
    started: float,
    gap: float,
    message: str,
) -> Answer:
    """The answer; a search that ran out of time may end behind the solution it began with."""
    found = None if answer.values is None else built.read_answer(answer.values)
    if known is not None and known.schedule is not None and known.strategies is not None:
        start = known.schedule, known.strategies
        is_faster = found is None or known.seconds < price(built.graph, *found).seconds
        found = start if is_faster else found
    bound = answer.bound * built.scale_seconds if math.isfinite(answer.bound) else answer.bound
    if bound == math.inf:
        message = " ".join(filter(None, (message, violated_families(built))))
    return _answer(built.graph, built.limit_bytes, found, bound, solver, started, gap, message)


def _answer(
    graph: ShardedGraph,
    limit_bytes: int,
    found: tuple[Schedule, tuple[int, ...]] | None,
    bound: float,
    solver: str,
    started: float,
    gap: float,
    message: str,
) -> Answer:
    """The answer, priced by simulation."""
    seconds = time.monotonic() - started
    if found is None:
        proven = bound == math.inf
        status = SolveStatus.INFEASIBLE if proven else SolveStatus.NO_SOLUTION_FOUND
        return Answer(status, None, None, None, bound, solver, seconds, message)
    priced = price(graph, *found)
    if priced.peak_bytes > limit_bytes:
        raise InvalidProblemError(
            f"A solution of {solver} peaks at {priced.peak_bytes} of {limit_bytes} bytes.",
            cause="the solver's tolerance, or a bug in the formulation",
        )
    closed = relative_gap(priced.seconds, bound) <= max(gap, 1e-6)
    status = SolveStatus.OPTIMAL if closed else SolveStatus.FEASIBLE
    return Answer(status, found[0], found[1], priced, bound, solver, seconds, message)


def violated_families(built: StagedModel | ReducedModel) -> str:
    """Which families of rows an infeasible program cannot meet, in words.

    The limit is replaced by the least one under which the rest can be met.
    """
    rows = [
        row
        for row in built.model.linear_constraints()
        if re.split(r"\[", row.name)[0] in FAMILIES and math.isfinite(row.upper_bound)
    ]
    names = sorted({FAMILIES[row.name.split("[")[0]] for row in rows})
    return f"Cannot be met under {built.limit_bytes} bytes: {', '.join(names)}."
