"""Every formulation against enumeration of its own definition, and against each other."""

import math

import numpy as np
import pytest

from kiwi.errors import InvalidProblemError
from kiwi.solver.formulations import (
    FORMULATIONS,
    Operator,
    Read,
    ShardedGraph,
    price,
    solve_formulation,
)
from kiwi.solver.formulations.brute_force import full_seconds, joint_seconds
from kiwi.solver.result import SolveStatus
from tests.solver.random_sharded_graphs import random_graph, random_limit

BLOCKS, BLOCK = 10, 20
"""Two hundred graphs."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_each_agrees_with_its_definition_and_they_are_ordered(block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        graph = random_graph(seed, 5)
        limit = random_limit(graph, seed)
        expected = {
            "full": full_seconds(graph, limit),
            "joint": joint_seconds(graph, limit),
            "reduced": joint_seconds(graph, limit, chains=False),
        }
        for formulation, seconds in expected.items():
            answer = solve_formulation(graph, limit, formulation)
            assert answer.seconds == pytest.approx(seconds), (seed, formulation)
            assert answer.status is (
                SolveStatus.OPTIMAL if math.isfinite(seconds) else SolveStatus.INFEASIBLE
            ), (seed, formulation)
        assert expected["full"] <= expected["joint"] <= expected["reduced"], seed


@pytest.mark.parametrize("solver", ["cp-sat", "scip", "gurobi"])
@pytest.mark.parametrize("formulation", ["full", "reduced"])
def test_other_solvers_agree(solver, formulation):
    if solver == "gurobi":
        pytest.importorskip("gurobipy")
    for seed in (0, 56, 128, 200, 201):
        graph = random_graph(seed, 5)
        limit = random_limit(graph, seed)
        mine = solve_formulation(graph, limit, formulation, solver=solver)
        assert mine.message == "" or mine.status is SolveStatus.INFEASIBLE
        assert mine.seconds == pytest.approx(solve_formulation(graph, limit, formulation).seconds)


def chain(length: int, strategies: int = 1) -> ShardedGraph:
    """A forward chain, and a backward chain in which each step reads its forward value."""
    count = 2 * length
    one = (1.0,) * strategies
    operators = [Operator("w", (0.0,), (1,), (0,), is_parameter=True)]
    for i in range(count):
        sizes = (10,) * strategies
        operators.append(Operator(f"o{i}", one, sizes, (0,) * strategies, is_forward=i < length))
    pairs = [(k, k + 1) for k in range(count)]
    pairs += [(length - k, length + 1 + k) for k in range(1, length)]
    reads = [
        Read(a, b, np.zeros((operators[a].count, operators[b].count)))
        for a, b in dict.fromkeys(pairs)
    ]
    return ShardedGraph(tuple(operators), tuple(reads), results=frozenset({count}))


def test_chains_reach_limits_that_the_reduced_problem_cannot():
    """Six forward values: with Eq. 9 every other one stays at least."""
    graph = chain(6)
    least = {}
    for formulation in FORMULATIONS:
        fits = [
            limit
            for limit in range(21, 82, 10)
            if solve_formulation(graph, limit, formulation).priced is not None
        ]
        least[formulation] = min(fits)
    assert least["full"] <= least["joint"] < least["reduced"]


@pytest.mark.parametrize("seed", [0, 56, 128])
def test_full_recomputes_what_joint_may_not(seed):
    """Twice, or in the forward pass."""
    graph = random_graph(seed, 5)
    limit = random_limit(graph, seed)
    full = solve_formulation(graph, limit, "full").seconds
    assert full < solve_formulation(graph, limit, "joint").seconds


def test_price_is_the_simulation():
    graph = chain(4)
    answer = solve_formulation(graph, 41, "full")
    assert answer.schedule is not None and answer.strategies is not None
    assert answer.priced == price(graph, answer.schedule, answer.strategies)
    assert answer.priced.seconds == len(answer.schedule.steps)
    assert answer.priced.peak_bytes == max(answer.priced.memory_bytes) <= 41


@pytest.mark.parametrize("formulation", ["full", "reduced"])
def test_infeasible_says_which_rows(formulation):
    answer = solve_formulation(chain(4), 15, formulation)
    assert answer.status is SolveStatus.INFEASIBLE
    assert "memory held while" in answer.message and "15 bytes" in answer.message


def test_gurobi_beyond_its_licence_falls_back():
    pytest.importorskip("gurobipy")
    graph = chain(7, strategies=3)
    limit = 101
    answer = solve_formulation(graph, limit, "full", solver="gurobi", time_limit_seconds=20)
    if answer.solver == "gurobi":
        pytest.skip("a licence without a limit")
    assert answer.solver == "highs" and "HiGHS stood in." in answer.message
    assert answer.seconds == pytest.approx(14.0)


def test_a_read_against_the_order_is_refused():
    operator = Operator("o", (1.0,), (1,), (0,))
    with pytest.raises(InvalidProblemError, match="cannot read"):
        ShardedGraph((operator, operator), (Read(1, 0, np.zeros((1, 1))),))
