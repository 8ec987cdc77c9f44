"""The message-passing bound, its reduced costs, and its prices, against brute force."""

import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kiwi.solver import Problem
from kiwi.solver.dual import Dual
from kiwi.solver.network import Network, build_network
from kiwi.solver.relaxed import Relaxed, cost_of, usage_of
from tests.solver.random_problems import random_problem

TOLERANCE = 1e-9


def _dual(problem: Problem) -> tuple[Network, Dual]:
    net = build_network(problem)
    return net, Dual(Relaxed(net))


def _assignments(net: Network) -> list[np.ndarray]:
    sizes = np.diff(net.option_start)
    return [np.array(c) for c in itertools.product(*(range(int(s)) for s in sizes))]


def _lagrangian(net: Network, choice: np.ndarray, prices: np.ndarray) -> float:
    cost = cost_of(net, net.cost, choice)
    return cost + float(prices @ (usage_of(net, choice) - float(net.limit_bytes)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_bound_holds_at_any_prices(seed: int, price_seed: int) -> None:
    net, dual = _dual(random_problem(seed, most_nodes=5))
    prices = np.random.default_rng(price_seed).random(len(net.times))
    value = dual.evaluate(prices)
    least = min(_lagrangian(net, choice, prices) for choice in _assignments(net))
    assert value <= least + TOLERANCE * max(1.0, abs(value))


def test_bound_is_exact_on_trees() -> None:
    exact = 0
    for seed in range(60):
        problem = random_problem(seed)
        tree = _spanning_tree(problem)
        net, dual = _dual(Problem(problem.nodes, tree, None, problem.horizon))
        value = dual.evaluate(np.zeros(0), 50)
        least = min(cost_of(net, net.cost, choice) for choice in _assignments(net))
        if math.isfinite(least):
            exact += 1
            assert math.isclose(value, least, rel_tol=1e-6, abs_tol=1e-6)
    assert exact > 20


def _spanning_tree(problem: Problem) -> tuple:
    group = list(range(len(problem.nodes)))
    kept = []
    for edge in problem.edges:
        a, b = group[edge.tail], group[edge.head]
        if a != b:
            group = [b if g == a else g for g in group]
            kept.append(edge)
    return tuple(kept)


def test_reduced_costs_bound_every_assignment_with_an_option() -> None:
    positive = 0
    for seed in range(80):
        net, dual = _dual(random_problem(seed, most_nodes=5))
        dual.evaluate(dual.best_prices, 15)
        dual.improve(10)
        bound, spare = dual.reduced_costs()
        positive += int((spare > 0).sum())
        for choice in _assignments(net):
            if usage_of(net, choice).max(initial=0) > net.limit_bytes:
                continue
            cost = cost_of(net, net.cost, choice)
            options = net.option_start[:-1] + choice
            assert cost >= bound + spare[options].max() - TOLERANCE * max(1.0, abs(bound))
    assert positive > 100


def test_prices_reach_the_value_of_the_relaxation() -> None:
    """One node, costs 0 and 10 with 10 and 0 bytes, limit 5: half of each, so 5."""
    from kiwi.solver import Interval, Node

    node = Node("n", np.array([0.0, 10.0]), ((Interval(0, 1, 10),), ()))
    _, dual = _dual(Problem((node,), (), 5, 1))
    dual.evaluate(dual.best_prices)
    dual.improve(30)
    assert math.isclose(dual.bound, 5.0, rel_tol=1e-3)
