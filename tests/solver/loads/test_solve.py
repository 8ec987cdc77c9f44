"""Channels that work at the same time: the referee by hand, and searches against brute force."""

import importlib
from typing import Any

import numpy as np
import pytest

from kiwi.errors import InvalidProblemError
from kiwi.solver import Edge, Node, Problem, evaluate, solve
from kiwi.solver.problem import Load
from tests.solver.random_problems import loaded_problem

loads_solve = importlib.import_module("kiwi.solver.loads.solve")


def test_of_each_window_only_the_largest_channel_counts() -> None:
    """Window 0: 5 of computing and 3 + 4 of sending take 7; window 1: 2 alone. 1 is neither's."""
    computes = Node("a", np.array([6.0]), ((),), loads=(Load(0, 0, np.array([5.0])),))
    sends = Node("b", np.array([3.0]), ((),), loads=(Load(0, 1, np.array([3.0])),))
    both = (Load(0, 1, np.array([[4.0]])), Load(1, 0, np.array([[2.0]])))
    problem = Problem(
        (computes, sends), (Edge(0, 1, np.array([[6.0]]), loads=both),), None, horizon=1
    )
    found = evaluate(problem, [0, 0])
    assert found.loads == {(0, 0): 5.0, (0, 1): 7.0, (1, 0): 2.0}
    assert (found.hidden, found.cost) == (5.0, 10.0)


def test_communication_is_chosen_where_it_hides_behind_computation() -> None:
    """Without overlap 3 + 2 is cheaper than 3 + 3; 3 of sending costs nothing beside 3."""
    usage = ((), ())
    work = Node("work", np.array([3.0]), ((),), loads=(Load(0, 0, np.array([3.0])),))
    send = Load(0, 1, np.array([3.0, 0.0]))
    choice = Node("send or wait", np.array([3.0, 2.0]), usage, loads=(send,))
    problem = Problem((work, choice), (), None, horizon=1)
    result = solve(problem)
    assert (result.solution, result.objective) == ((0, 0), 3.0)
    assert result.bound == pytest.approx(3.0)


def test_weight_moves_to_the_channel_that_is_larger() -> None:
    """Of two sends one hides behind the work, both do not: the second is waited for."""
    work = Node("work", np.array([4.0]), ((),), loads=(Load(0, 0, np.array([4.0])),))
    sends = [
        Node(f"s{k}", np.array([3.0, 1.5]), ((), ()), loads=(Load(0, 1, np.array([3.0, 0.0])),))
        for k in range(2)
    ]
    result = solve(Problem((work, *sends), (), None, horizon=1), gap=0.0)
    assert result.objective == 5.5
    assert result.bound <= 5.5


def test_where_computation_is_the_largest_channel_one_search_is_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = list[int | None]()
    solved = loads_solve._Search._asked

    def asked(search: Any, *, is_rough: bool) -> Any:
        searched.append(search._request.round_limit)
        return solved(search, is_rough=is_rough)

    monkeypatch.setattr(loads_solve._Search, "_asked", asked)
    work = Node("work", np.array([3.0]), ((),), loads=(Load(0, 0, np.array([3.0])),))
    send = Load(0, 1, np.array([2.0, 0.0]))
    choice = Node("send or wait", np.array([2.0, 2.5]), ((), ()), loads=(send,))
    result = solve(Problem((work, choice), (), None, horizon=1))
    assert (result.objective, result.bound) == (3.0, pytest.approx(3.0))
    assert len(searched) == 1


def test_bound_below_optimum_below_objective() -> None:
    for seed in range(80):
        problem = loaded_problem(seed)
        best = solve(problem, solver="brute-force")
        result = solve(problem, seed=seed, gap=0.0)
        if best.objective is None:
            assert result.solution is None
            continue
        assert result.objective is not None
        assert result.bound <= best.objective + 1e-9
        assert best.objective <= result.objective + 1e-9
        assert result.objective == evaluate(problem, result.solution or ()).cost
        assert result.objective <= 1.05 * best.objective


def test_balances_of_one_problem_bound_it_again_in_fewer_rounds() -> None:
    seen = 0
    for seed in range(40):
        problem = loaded_problem(seed)
        first = solve(problem, seed=seed, gap=0.0)
        if first.solution is None or not first.balances:
            continue
        seen += 1
        start = first.solution
        again = solve(problem, seed=seed, gap=0.0, warm_start=start, balances=first.balances)
        best = solve(problem, solver="brute-force")
        assert best.objective is not None and again.objective is not None
        assert again.bound <= best.objective + 1e-9
        assert again.objective <= (first.objective or 0.0)
        assert again.bound >= 0.99 * first.bound
        assert again.iterations <= first.iterations
    assert seen > 5


def test_loads_have_the_shape_of_their_costs() -> None:
    with pytest.raises(InvalidProblemError, match="load of shape"):
        Node("n", np.array([1.0]), ((),), loads=(Load(0, 0, np.array([1.0, 2.0])),))
