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
    cost = priced.cost if priced is not None and priced.feasible else math.inf
    found = math.isfinite(cost)
    bound = min(bound, cost)
    return SolveResult(
        status=_status(cost, bound),
        solution=tuple(int(option) for option in solution or ()) if found else None,
        objective=cost if found else None,
        bound=bound,
        seconds=0.0,
        solver=solver,
        peak_bytes=priced.peak_bytes if priced is not None and found else None,
        message=message,
        least_peak_bytes=None if found else least_peak_bytes,
        least_peak_bound_bytes=None if found else least_peak_bound_bytes,
        iterations=iterations,
        deterministic=deterministic,
    )


def _status(cost: float, bound: float) -> SolveStatus:
    if cost == math.inf:
        return SolveStatus.INFEASIBLE if bound == cost else SolveStatus.NO_SOLUTION_FOUND
    closed = math.isfinite(bound) and relative_gap(cost, bound) <= OPTIMAL_GAP
    return SolveStatus.OPTIMAL if closed else SolveStatus.FEASIBLE
