"""Differences between the formulations, their results for limits that cannot be met, and
fall-backs."""

import numpy as np
import pytest

from kiwi.errors import InvalidProblemError
from kiwi.literature.formulations import (
    FORMULATIONS,
    Operator,
    Read,
    ShardedGraph,
    price,
    solve_formulation,
)
from kiwi.solver.result import SolveStatus


def chain(length: int, strategies: int = 1) -> ShardedGraph:
    """Returns a forward chain, and a backward chain in which each step reads its forward value."""
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


def figure_1() -> ShardedGraph:
    """The worked example of docs/literature/paper_models.md: four layers and one weight, in MB."""
    weight = Operator("w", (0.0, 0.0), (1, 2), (0, 0), is_parameter=True)
    forward = [Operator(f"f{k}", (0.5,), (2,), (0,), is_forward=True) for k in range(4)]
    backward = [Operator(f"b{k}", (1.0,), (1,), (0,)) for k in (3, 2, 1, 0)]
    pairs = [(k, k + 1) for k in range(1, 8)] + [(3, 6), (2, 7), (1, 8)]
    reads = [Read(a, b, np.zeros((1, 1))) for a, b in pairs]
    reads += [Read(0, 3, np.zeros((2, 1))), Read(0, 6, np.array([[2.0], [0.0]]))]
    return ShardedGraph((weight, *forward, *backward), tuple(reads))


@pytest.mark.parametrize(
    ("limit", "full", "joint", "reduced"),
    [(11, 6.0, 6.0, 6.0), (9, 6.5, 6.5, 6.5), (8, 7.0, 7.0, 7.0), (7, 7.5, 9.0, 9.0)],
)
def test_the_worked_example_as_by_hand(limit, full, joint, reduced):
    expected = {"full": full, "joint": joint, "reduced": reduced}
    for formulation, seconds in expected.items():
        found = solve_formulation(figure_1(), limit, formulation)
        assert found.seconds == pytest.approx(seconds), formulation


def test_full_meets_a_limit_that_joint_cannot():
    """One value recomputed twice."""
    assert solve_formulation(figure_1(), 6, "joint").status is SolveStatus.INFEASIBLE
    full = solve_formulation(figure_1(), 6, "full")
    assert full.schedule is not None
    assert max(full.schedule.computations().values()) == 3


def test_price_is_the_simulation():
    graph = chain(4)
    answer = solve_formulation(graph, 41, "full")
    assert answer.schedule and answer.strategies and answer.priced
    assert answer.priced == price(graph, answer.schedule, answer.strategies)
    assert answer.priced.compute_seconds == len(answer.schedule.steps)
    assert answer.priced.peak_bytes == max(answer.priced.memory_bytes) <= 41


@pytest.mark.parametrize("formulation", ["full", "reduced"])
def test_infeasible_says_which_rows(formulation):
    """No two values fit; one does, so that holding none of them would do."""
    answer = solve_formulation(chain(4), 15, formulation)
    assert answer.status is SolveStatus.INFEASIBLE
    assert "memory held while" in answer.message and "15 bytes" in answer.message


def test_a_lone_operator_that_does_not_fit_is_a_matter_of_memory_alone():
    answer = solve_formulation(chain(4), 5, "full")
    assert "without one demand alone: the memory held" in answer.message


def test_what_would_have_to_give_way_is_told_beside_memory():
    """Two values fit, a third would be held for a user; chains would do for the reduced model."""
    held = solve_formulation(chain(4), 15, "full").message
    assert "any one of" in held and "a value is held until" in held
    graph = chain(6)
    limits = [
        limit
        for limit in range(21, 82, 10)
        if solve_formulation(graph, limit, "reduced").priced is None
        and solve_formulation(graph, limit, "joint").priced is not None
    ]
    assert limits
    eq_9 = "no input of a recomputed operator is recomputed (Eq. 9)"
    assert eq_9 in solve_formulation(graph, max(limits), "reduced").message
    assert eq_9 not in solve_formulation(graph, 5, "reduced").message


def test_gurobi_beyond_its_licence_falls_back():
    pytest.importorskip("gurobipy")
    graph = chain(7, strategies=3)
    limit = 101
    answer = solve_formulation(
        graph, limit, "full", solver="gurobi", time_limit_seconds=20, relax_first=False
    )
    if answer.solver == "gurobi":
        pytest.skip("a licence without a limit")
    assert answer.solver == "highs" and "HiGHS stood in." in answer.message
    assert answer.seconds == pytest.approx(14.0)


def test_a_read_against_the_order_is_refused():
    operator = Operator("o", (1.0,), (1,), (0,))
    with pytest.raises(InvalidProblemError, match="cannot read"):
        ShardedGraph((operator, operator), (Read(1, 0, np.zeros((1, 1))),))
