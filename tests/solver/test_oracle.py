"""Every solver against brute force: bound <= optimum <= objective, and no false claims."""

import math

import pytest

from kiwi.solver import SOLVERS, SolveResult, SolveStatus, evaluate, solve
from kiwi.solver.solve import DEFAULT_GAP
from tests.solver.random_problems import random_problem

# How many random problems each solver is given: the slow ones fewer.
ROUNDS = {
    "highs": 60,
    "scip": 30,
    "cp-sat": 15,
    "gurobi": 30,
    "toulbar2": 60,
    "milp": 2,
    "auto": 150,
    "lagrangian": 60,
}
TOLERANCE = 1e-6


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "brute-force"])
@pytest.mark.parametrize("integral", [True, False])
def test_bound_below_optimum_below_objective(solver: str, integral: bool) -> None:
    statuses = set()
    for seed in range(ROUNDS.get(solver, 100)):
        problem = random_problem(seed, integral=integral)
        best = solve(problem, solver="brute-force")
        result = solve(problem, solver=solver, seed=seed, gap=0.0)
        _check(result, best)
        if result.solution is not None:
            priced = evaluate(problem, result.solution)
            assert priced.feasible
            assert (priced.cost, priced.peak_bytes) == (result.objective, result.peak_bytes)
        statuses.add(result.status)
    assert SolveStatus.OPTIMAL in statuses


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["scip", "cp-sat", "gurobi"])
def test_hundreds_of_problems(solver: str) -> None:
    """Of those that take their time."""
    for seed in range(1000, 1300):
        problem = random_problem(seed, integral=seed % 2 == 0)
        result = solve(problem, solver=solver, seed=seed)
        assert result.solver == solver, result.message
        _check(result, solve(problem, solver="brute-force"), gap=DEFAULT_GAP)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["auto", "lagrangian", "toulbar2", "highs"])
def test_thousands_of_problems(solver: str) -> None:
    for seed in range(1000, 3000):
        problem = random_problem(seed, integral=seed % 2 == 0)
        best = solve(problem, solver="brute-force")
        _check(solve(problem, solver=solver, seed=seed), best, gap=DEFAULT_GAP)


def _check(result: SolveResult, best: SolveResult, gap: float = 0.0) -> None:
    if best.solution is None:
        assert result.solution is None
        return
    assert best.objective is not None
    slack = TOLERANCE * max(1.0, abs(best.objective)) if best.objective > 1 else 1e-9
    assert result.bound <= best.objective + slack
    assert result.status is not SolveStatus.INFEASIBLE
    if result.objective is None:  # a heuristic may fail to find what exists, if it says so
        assert result.solver in ("lagrangian", "toulbar2")
        assert result.status is SolveStatus.NO_SOLUTION_FOUND
        return
    assert result.objective >= best.objective - slack
    if result.status is SolveStatus.OPTIMAL:
        assert math.isclose(result.objective, best.objective, rel_tol=2e-6 + gap, abs_tol=1e-12)
