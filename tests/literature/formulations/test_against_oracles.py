"""Every formulation against the enumeration of its own definition, and all against each other."""

import math

import pytest

from kiwi.literature.formulations import ShardedGraph, price, solve_formulation
from kiwi.literature.formulations.relaxation import solve_relaxation
from kiwi.solver.result import SolveStatus
from tests.literature.formulations.oracles import full_seconds, joint_seconds
from tests.literature.formulations.random_graphs import random_graph, random_limit

PROBLEMS = 220
CHUNK = 20
QUICK = 40
"""So many problems are solved in every run of the tests."""
CHUNKS = [
    pytest.param(first, marks=[pytest.mark.slow] if first >= QUICK else [])
    for first in range(0, PROBLEMS, CHUNK)
]
ORACLES = {
    "full": full_seconds,
    "joint": joint_seconds,
    "reduced": lambda graph, limit: joint_seconds(graph, limit, chains=False),
}
"""The oracles, from the formulation with the most freedom to the one with the least."""


@pytest.mark.parametrize("first", CHUNKS)
def test_each_agrees_with_its_definition_and_freedom_costs_no_more(first: int) -> None:
    solved = 0
    for seed in range(first, first + CHUNK):
        graph, limit = random_graph(seed), random_limit(random_graph(seed), seed)
        expected = {name: oracle(graph, limit) for name, oracle in ORACLES.items()}
        assert expected["full"] <= expected["joint"] + 1e-9, seed
        assert expected["joint"] <= expected["reduced"] + 1e-9, seed
        for name, seconds in expected.items():
            _check(graph, limit, name, seconds)
        solved += math.isfinite(expected["full"])
    assert 0 < solved < CHUNK  # some limits can be met, some cannot


@pytest.mark.parametrize("first", CHUNKS)
def test_stages_alone_agree_and_the_relaxation_bounds_them(first: int) -> None:
    """What `solve_formulation` seldom gets to is tested as well as what it begins with."""
    attained = 0
    for seed in range(first, first + CHUNK):
        graph, limit = random_graph(seed), random_limit(random_graph(seed), seed)
        expected = full_seconds(graph, limit)
        _check(graph, limit, "full", expected, relax_first=False)
        bound_seconds, found = solve_relaxation(graph, limit, 20.0, 0)
        assert bound_seconds <= expected * (1 + 1e-6), seed
        if found is not None:
            priced = price(graph, *found)
            assert priced.peak_bytes <= limit
            assert priced.compute_seconds >= expected * (1 - 1e-9), seed
            attained += priced.compute_seconds == pytest.approx(expected)
    assert attained  # it is tight on some, or it would not be worth asking


def _check(
    graph: ShardedGraph, limit: int, formulation: str, expected: float, **options: bool
) -> None:
    answer = solve_formulation(graph, limit, formulation, **options)
    assert answer.seconds == pytest.approx(expected, rel=1e-6)
    if math.isinf(expected):
        assert answer.status is SolveStatus.INFEASIBLE
        assert answer.schedule is None and answer.priced is None
        return
    assert answer.schedule is not None and answer.strategies is not None
    simulated = price(graph, answer.schedule, answer.strategies)
    assert answer.priced == simulated
    assert simulated.peak_bytes <= limit
    assert answer.bound_seconds <= expected * (1 + 1e-6)


SOLVERS = ("cp-sat", "scip", "gurobi")
"""Solvers of the integer programs besides HiGHS, which the tests above use."""


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("formulation", ["full", "reduced"])
def test_solvers_agree(formulation: str, solver: str) -> None:
    _check_solver(formulation, solver, range(8))


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("formulation", ["full", "reduced"])
def test_solvers_agree_on_hundreds(formulation: str, solver: str) -> None:
    _check_solver(formulation, solver, range(8, PROBLEMS))


def _check_solver(formulation: str, solver: str, seeds: range) -> None:
    for seed in seeds:
        graph, limit = random_graph(seed), random_limit(random_graph(seed), seed)
        expected = ORACLES[formulation](graph, limit)
        answer = solve_formulation(graph, limit, formulation, solver=solver, relax_first=False)
        assert answer.seconds == pytest.approx(expected, rel=1e-6), seed
        assert answer.solver == solver, answer.message
