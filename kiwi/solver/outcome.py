"""Turns what a backend claims into a `SolveResult` that the referee has priced."""

import math
from collections.abc import Callable, Sequence

from kiwi.solver.evaluate import evaluate
from kiwi.solver.problem import Problem
from kiwi.solver.result import OPTIMAL_GAP, Progress, SolveResult, SolveStatus, relative_gap

OnProgress = Callable[[Progress], None]


def conclude(
    problem: Problem,
    solution: Sequence[int] | None,
    bound: float,
    *,
    solver: str,
    iterations: int = 0,
    message: str = "",
    deterministic: bool = True,
    least_peak_bytes: int | None = None,
    least_peak_bound_bytes: int | None = None,
) -> SolveResult:
    """Prices `solution` with the referee and derives the status from it and from `bound`.

    A solution that the referee rejects is dropped. A bound that lies above the cost of a feasible
    solution by rounding is lowered to it.
    """
    priced = None if solution is None else evaluate(problem, solution)
    if priced is None or not priced.feasible:
        proven = bound == math.inf
        return SolveResult(
            SolveStatus.INFEASIBLE if proven else SolveStatus.NO_SOLUTION_FOUND,
            solution=None,
            objective=None,
            bound=bound,
            seconds=0.0,
            solver=solver,
            message=message,
            least_peak_bytes=least_peak_bytes,
            least_peak_bound_bytes=least_peak_bound_bytes,
            iterations=iterations,
            deterministic=deterministic,
        )
    bound = min(bound, priced.cost)
    closed = math.isfinite(bound) and relative_gap(priced.cost, bound) <= OPTIMAL_GAP
    return SolveResult(
        SolveStatus.OPTIMAL if closed else SolveStatus.FEASIBLE,
        solution=tuple(int(option) for option in solution or ()),
        objective=priced.cost,
        bound=bound,
        seconds=0.0,
        solver=solver,
        peak_bytes=priced.peak_bytes,
        message=message,
        iterations=iterations,
        deterministic=deterministic,
    )
