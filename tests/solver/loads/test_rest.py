"""The rest of problems with loads, solved exactly, against the referee and brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest

from kiwi.solver import evaluate, solve
from kiwi.solver.loads.exact import LoadedNetwork, is_worth, solve_rest, without_worse
from kiwi.solver.loads.restricted import Restricted
from kiwi.solver.loads.weights import Weights
from kiwi.solver.relaxed import cost_of
from kiwi.solver.request import Request
from tests.solver.random_problems import loaded_problem

SEEDS = range(30)


def test_network_and_loads_cost_what_the_referee_says() -> None:
    for seed in SEEDS:
        problem = loaded_problem(seed)
        loaded = LoadedNetwork.of(problem)
        net, rng = loaded.network, np.random.default_rng(seed)
        for _ in range(10):
            choice = np.array([rng.integers(node.costs.size) for node in problem.nodes])
            found = evaluate(problem, choice.tolist()).cost
            longest = [
                max(
                    float(cost_of(replace(net, table=each.table), each.cost, choice))
                    for each in own
                )
                for own in loaded.windows.values()
            ]
            own_cost = float(cost_of(net, net.cost, choice))
            assert own_cost + sum(longest) == pytest.approx(found, abs=1e-9)


def test_rest_is_solved_to_the_optimum_and_keeps_every_optimum() -> None:
    seen = 0
    for seed in SEEDS:
        problem = loaded_problem(seed)
        best = solve(problem, solver="brute-force")
        if best.solution is None or best.objective is None:
            continue
        seen += 1
        assert is_worth(problem, math.inf)
        rest = Restricted.nothing(problem)
        weighted = Weights(problem, {}).weighted(problem)
        rest, bound, _ = without_worse(rest, weighted, best.objective)
        assert bound <= best.objective + 1e-9
        assert rest.own(best.solution) is not None
        request = Request(problem, gap=0.0)
        found, bound, _, is_late = solve_rest(rest, request, best.solution, math.inf)
        assert found is not None and not is_late
        assert evaluate(problem, found).cost == pytest.approx(best.objective)
        assert bound == pytest.approx(best.objective, rel=1e-5)
    assert seen > 10


def test_a_problem_too_large_for_the_work_is_left_alone() -> None:
    problem = loaded_problem(1)
    assert not is_worth(problem, 1.0)
    answer = solve_rest(
        Restricted.nothing(problem), Request(problem), (0,) * len(problem.nodes), 1.0
    )
    assert answer == (None, -math.inf, 0, False)


def test_solutions_go_both_ways() -> None:
    problem = loaded_problem(2)
    last = [np.arange(node.costs.size) == node.costs.size - 1 for node in problem.nodes]
    rest = Restricted.nothing(problem).to(last)
    whole = tuple(node.costs.size - 1 for node in problem.nodes)
    assert rest.whole((0,) * len(whole)) == whole and rest.own(whole) == (0,) * len(whole)
    assert rest.own((0,) * len(whole)) is None
    assert evaluate(rest.problem, (0,) * len(whole)).cost == evaluate(problem, whole).cost
