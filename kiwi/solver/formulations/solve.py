"""The formulations by name, each: how its model is built, solved, and read.

An answer's time and peak come from `price`, which simulates the schedule; a solution whose
simulated peak is over the limit would be a bug, and raises.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace

from kiwi.errors import InvalidProblemError, SolverUnavailableError, UnknownSolverError
from kiwi.solver.answer import MilpAnswer
from kiwi.solver.formulations.answer import Answer, price
from kiwi.solver.formulations.conflict import FAMILIES, SECONDS, conflict
from kiwi.solver.formulations.joint import build_joint
from kiwi.solver.formulations.reduced import ReducedModel, build_reduced
from kiwi.solver.formulations.relaxation import solve_relaxation
from kiwi.solver.formulations.sharded_graph import ShardedGraph
from kiwi.solver.formulations.staged import StagedModel, build_staged
from kiwi.solver.gurobi import solve_with_gurobi
from kiwi.solver.mathopt_run import SOLVER_TYPES, solve_with_mathopt
from kiwi.solver.quiet import quiet_stdout
from kiwi.solver.result import SolveStatus, relative_gap
from kiwi.solver.schedule import Schedule
from kiwi.solver.solve import solve

DEFAULT_SOLVER = "highs"
PROVEN_GAP = 1e-6
"""How close to a bound a solution is called optimal at least, relatively."""
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
    relax_first: bool = True,
) -> Answer:
    """Solves one of `FORMULATIONS` for a limit in bytes.

    **Arguments:**

    - `solver`: "highs", "cp-sat", "scip" or "gurobi" for the integer programs; where Gurobi's
      licence does not fit, HiGHS stands in and the answer's message says so.
    - `relax_first`: asks the relaxation before the full model, and only what it leaves open of the
      model with stages; False does not.

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
    known = None
    if formulation == "full" and relax_first:
        known = _known(graph, limit_bytes, started, time_limit_seconds, seed, gap)
        if known.status is SolveStatus.OPTIMAL:
            return known
    left = max(0.1, time_limit_seconds - (time.monotonic() - started))
    answer = _solve_program(graph, limit_bytes, formulation, solver, left, seed, gap, known)
    return replace(answer, solve_seconds=time.monotonic() - started)


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
    seconds: float,
    seed: int,
    gap: float,
    known: Answer | None,
) -> Answer:
    """Solves an integer program, beginning with what is known."""
    started = time.monotonic()
    build = FORMULATIONS[formulation]
    assert build is not None
    built, hint, message = build(graph, limit_bytes), None, ""
    if known is not None and isinstance(built, StagedModel):
        if known.schedule is not None:
            hint = built.hint(known.schedule, known.strategies)
        if math.isfinite(known.bound_seconds):
            built.add_bound(known.bound_seconds)
    options = {"time_limit_seconds": seconds, "seed": seed, "gap": gap, "hint": hint}
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


def _known(
    graph: ShardedGraph, limit_bytes: int, started: float, seconds: float, seed: int, gap: float
) -> Answer:
    """What is known of the full model without its stages: the better of the joint schedule and
    the relaxation's own, and the relaxation's bound."""
    joint = _solve_joint(graph, limit_bytes, started, min(seconds / 4, 5.0), seed, 1e-3)
    relaxed = solve_relaxation(graph, limit_bytes, seconds / 4, seed)
    found, bound = relaxed.found, relaxed.bound_seconds
    if joint.schedule is not None and joint.strategies is not None:
        is_faster = found is None or joint.seconds <= price(graph, *found).seconds
        found = (joint.schedule, joint.strategies) if is_faster else found
    return _answer(graph, limit_bytes, found, bound, "relaxation", started, gap, "")


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
        message = " ".join(filter(None, (message, _why(built))))
    return _answer(built.graph, built.limit_bytes, found, bound, solver, started, gap, message)


def _why(built: StagedModel | ReducedModel) -> str:
    """Which families of rows an infeasible program cannot meet, in words."""
    formulation = "full" if isinstance(built, StagedModel) else "reduced"
    build = FORMULATIONS[formulation]
    assert build is not None
    families = FAMILIES[formulation]
    told = conflict(lambda: build(built.graph, built.limit_bytes), families, SECONDS)
    return f"Under {built.limit_bytes} bytes there is no schedule. {told}"


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
    closed = relative_gap(priced.seconds, bound) <= max(gap, PROVEN_GAP)
    status = SolveStatus.OPTIMAL if closed else SolveStatus.FEASIBLE
    return Answer(status, found[0], found[1], priced, bound, solver, seconds, message)
