"""Every assignment, priced by the referee: the oracle that all other solvers are tested against."""

import itertools
import math

from kiwi.errors import SolverUnavailableError
from kiwi.solver.evaluate import evaluate
from kiwi.solver.outcome import conclude
from kiwi.solver.request import Request
from kiwi.solver.result import SolveResult

MOST_ASSIGNMENTS = 2_000_000
"""Above this the oracle declines: it would take minutes."""


def solve_brute_force(request: Request) -> SolveResult:
    """The cheapest feasible assignment, the first in lexicographic order among equals.

    Raises `SolverUnavailableError` where there are more than `MOST_ASSIGNMENTS`.
    """
    problem = request.problem
    sizes = [node.costs.size for node in problem.nodes]
    count = math.prod(sizes)
    if count > MOST_ASSIGNMENTS:
        raise SolverUnavailableError(
            f"Brute force over {count:.3g} assignments was declined.",
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
