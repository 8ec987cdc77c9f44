"""The formulations by name: how their models are built, solved and read.

The time and peak of an answer come from `price`. A solution whose peak is over the limit would be a
bug, and raises.
"""

import math
import time
from dataclasses import dataclass

from kiwi.errors import (
    InvalidProblemError,
    SolverUnavailableError,
    UnknownSolverError,
    check_known,
)
from kiwi.literature.formulations.joint import build_joint
from kiwi.literature.formulations.program import StrategyProgram, conflict
from kiwi.literature.formulations.reduced import ReducedModel
from kiwi.literature.formulations.relaxation import solve_relaxation
from kiwi.literature.formulations.sharded_graph import Answer, ShardedGraph, Solution, price
from kiwi.literature.formulations.staged import StagedModel
from kiwi.messages import topics
from kiwi.solver.mathopt_run import MODEL_SOLVERS, solve_model
from kiwi.solver.result import SolveStatus, is_closed
from kiwi.solver.solve import solve

DEFAULT_SOLVER = "highs"


@dataclass(frozen=True)
class _Question:
    """A problem to solve. `started` is a reading of `time.monotonic`."""

    graph: ShardedGraph
    limit_bytes: int
    seed: int
    gap: float
    started: float

    def answer(
        self, found: Solution | None, bound: float, solver: str, message: str = ""
    ) -> Answer:
        """Returns the answer to the question, priced by simulation.

        Raises `InvalidProblemError` if the solution's peak is over the limit.
        """
        seconds = time.monotonic() - self.started
        if found is None:
            proven = bound == math.inf
            status = SolveStatus.INFEASIBLE if proven else SolveStatus.NO_SOLUTION_FOUND
            return Answer(status, None, None, None, bound, solver, seconds, message)
        priced = price(self.graph, *found)
        if priced.peak_bytes > self.limit_bytes:
            raise InvalidProblemError(
                f"A solution of {solver} peaks at {priced.peak_bytes} of {self.limit_bytes} bytes.",
                topic=topics.SCHEDULE,
                cause="the solver's tolerance, or a bug in the formulation",
            )
        closed = is_closed(priced.compute_seconds, bound, self.gap)
        status = SolveStatus.OPTIMAL if closed else SolveStatus.FEASIBLE
        return Answer(status, *found, priced, bound, solver, seconds, message)

    def faster(self, *found: Solution | None) -> Solution | None:
        """Returns the fastest solution, the first of equally fast ones; None without any."""
        solutions = [solution for solution in found if solution is not None]
        return min(
            solutions,
            key=lambda candidate: price(self.graph, *candidate).compute_seconds,
            default=None,
        )


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
    """Solves one of `FORMULATIONS` for a memory limit in bytes per device.

    - `solver`: "highs", "cp-sat", "scip" or "gurobi", for the integer programs. If Gurobi's licence
      does not fit, HiGHS solves the program instead and the answer's message says so.
    - `gap`: the relative gap at which a solver stops.
    - `relax_first`: solve the relaxation before the full model. The program with stages then runs
      only if the relaxation does not settle the problem.

    **Raises:** `UnknownSolverError`, `InvalidProblemError`.
    """
    check_known(solver, MODEL_SOLVERS, "solver", UnknownSolverError)
    check_known(formulation, FORMULATIONS, "formulation", InvalidProblemError)
    question = _Question(graph, limit_bytes, seed, gap, time.monotonic())
    build = FORMULATIONS[formulation]
    if build is None:
        return _solve_joint(question, time_limit_seconds, gap)
    known = None
    if build is StagedModel and relax_first:
        known = _known(question, time_limit_seconds)
        if known.status is SolveStatus.OPTIMAL:
            return known
    left = max(0.1, time_limit_seconds - (time.monotonic() - question.started))
    return _solve_program(question, build, solver, left, known)


FORMULATIONS: dict[str, type[StrategyProgram] | None] = {
    "full": StagedModel,
    "reduced": ReducedModel,
    "joint": None,
}
"""The integer programs by name. "joint" is a `Problem`, which has solvers of its own."""


def _solve_joint(asked: _Question, seconds: float, gap: float) -> Answer:
    built = build_joint(asked.graph, asked.limit_bytes)
    result = solve(built.problem, time_limit_seconds=seconds, seed=asked.seed, gap=gap)
    solution = None if result.solution is None else built.read_answer(result.solution)
    return asked.answer(solution, result.bound, result.solver)


def _known(asked: _Question, seconds: float) -> Answer:
    """Returns the known results for the full model before its program with stages runs.

    The solution is the faster of the joint schedule and the relaxation's own. The bound is the
    relaxation's.
    """
    joint = _solve_joint(asked, min(seconds / 4, 5.0), gap=1e-3)
    bound, relaxed = solve_relaxation(asked.graph, asked.limit_bytes, seconds / 4, asked.seed)
    return asked.answer(asked.faster(joint.solution, relaxed), bound, "relaxation")


def _solve_program(
    asked: _Question,
    build: type[StrategyProgram],
    solver: str,
    seconds: float,
    known: Answer | None,
) -> Answer:
    """Solves an integer program, starting from `known`.

    If the search runs out of time, the answer still has the solution of `known`.
    """
    built, hint, message = build(asked.graph, asked.limit_bytes), None, ""
    start = None if known is None else known.solution
    if known is not None and isinstance(built, StagedModel):
        if start is not None:
            hint = built.hint(*start)
        if math.isfinite(known.bound_seconds):
            built.add_bound(known.bound_seconds)
    settings = (built.model, seconds, asked.seed, asked.gap, hint)
    try:
        answer = solve_model(*settings, solver=solver)
    except SolverUnavailableError as error:
        if solver != "gurobi":
            raise
        solver, message = DEFAULT_SOLVER, f"{error.what} HiGHS stood in."
        answer = solve_model(*settings)
    if answer.infeasible:
        explanation = conflict(lambda: build(asked.graph, asked.limit_bytes).model, build.families)
        message += f" Under {asked.limit_bytes} bytes there is no schedule. {explanation}"
    solution = None if answer.values is None else built.read_answer(answer.values)
    bound = answer.bound * built.scale_seconds if math.isfinite(answer.bound) else answer.bound
    return asked.answer(asked.faster(solution, start), bound, solver, message.strip())
