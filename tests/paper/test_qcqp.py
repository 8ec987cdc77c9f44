"""The paper's model with products of variables, solved by Gurobi."""

import math

import pytest

from benchmarks.paper.qcqp import solve_qcqp
from kiwi.literature.formulations import price
from kiwi.solver.result import SolveStatus
from tests.literature.formulations.oracles import full_seconds
from tests.literature.formulations.random_graphs import random_graph, random_limit


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_agrees_with_enumeration(first: int) -> None:
    for seed in range(first, first + 20):
        graph, limit = random_graph(seed), random_limit(random_graph(seed), seed)
        expected = full_seconds(graph, limit)
        answer = solve_qcqp(graph, limit)
        assert answer.solver == "gurobi", answer.message
        assert answer.seconds == pytest.approx(expected, rel=1e-6), seed
        if math.isinf(expected):
            assert answer.status is SolveStatus.INFEASIBLE and "memory" in answer.message
        else:
            assert answer.schedule is not None and answer.strategies is not None
            simulated = price(graph, answer.schedule, answer.strategies)
            assert simulated == answer.priced and simulated.peak_bytes <= limit, seed


def test_a_model_over_the_licence_falls_back_in_a_line() -> None:
    graph = random_graph(0, forward=5, backward=5)
    answer = solve_qcqp(graph, 10**6)
    assert answer.status is SolveStatus.OPTIMAL
    assert answer.solver == "highs"
    assert "Gurobi declined" in answer.message and "linear model stood in" in answer.message
    assert "\n" not in answer.message
