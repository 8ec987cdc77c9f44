"""Elimination of nodes: exact against brute force, with few cells on ladders, and its end."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiwi.solver import Edge, Interval, Node, Problem, solve
from kiwi.solver.dual import Dual
from kiwi.solver.elimination import Elimination
from kiwi.solver.network import Network, build_network
from kiwi.solver.relaxed import Relaxed, cost_of
from tests.solver.random_problems import random_problem

MOST_CELLS = 1e7


def _assignments(net: Network) -> list[np.ndarray]:
    sizes = np.diff(net.option_start)
    return [np.array(c) for c in itertools.product(*(range(int(s)) for s in sizes))]


def _eliminated(net: Network) -> Elimination:
    found = Elimination.of(net, MOST_CELLS)
    assert found is not None
    return found


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_value_and_choice_are_those_of_brute_force(seed: int, price_seed: int) -> None:
    relaxed = Relaxed(build_network(random_problem(seed, most_nodes=5)))
    net = relaxed.net
    prices = np.random.default_rng(price_seed).random(len(net.times))
    priced = relaxed.priced(prices)
    choice, value = _eliminated(net).solve(priced)
    least = min(float(cost_of(net, priced, c)) for c in _assignments(net))
    assert value == pytest.approx(least, rel=1e-9, abs=1e-9)
    assert float(cost_of(net, priced, choice)) == pytest.approx(least, rel=1e-9, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_min_marginals_are_those_of_brute_force(seed: int) -> None:
    relaxed = Relaxed(build_network(random_problem(seed, most_nodes=5)))
    net = relaxed.net
    found = _eliminated(net).min_marginals(relaxed.unary)
    least = np.full(net.option_count, math.inf)
    for choice in _assignments(net):
        options = net.option_start[:-1] + choice
        cost = float(cost_of(net, relaxed.unary, choice))
        least[options] = np.minimum(least[options], cost)
    np.testing.assert_allclose(found, least, rtol=1e-9, atol=1e-9)


def ladder(layers: int, options: int, seed: int, *, limit_bytes: int | None = None) -> Problem:
    """Returns two rails with rungs. Each square is a cycle, on which messages give a weak bound."""
    random = np.random.default_rng(seed)
    count = 2 * layers
    nodes = [
        Node(
            f"n{k}", random.random(options), tuple((Interval(0, count, o),) for o in range(options))
        )
        for k in range(count)
    ]
    pairs = [(k, k + 2) for k in range(count - 2)] + [(2 * k, 2 * k + 1) for k in range(layers)]
    edges = [Edge(tail, head, 3 * random.random((options, options))) for tail, head in pairs]
    return Problem(tuple(nodes), tuple(edges), limit_bytes, count)


def test_cells_grow_with_the_layers_of_a_ladder() -> None:
    short, long = (_eliminated(build_network(ladder(layers, 6, 0))) for layers in (8, 80))
    assert long.cells <= 12 * short.cells


def test_what_takes_too_many_cells_is_refused() -> None:
    net = build_network(ladder(8, 6, 0))
    cells = _eliminated(net).cells
    assert Elimination.of(net, cells) is not None
    assert Elimination.of(net, cells - 1) is None


def test_options_that_no_edge_tells_apart_are_one_group() -> None:
    """Residencies differ by memory and cost alone: tables do not grow with them."""
    table = np.arange(9.0).reshape(3, 3)
    classes = np.repeat(np.arange(3), 40)
    held = ((),) * 120
    nodes = (Node("a", np.arange(120.0), held), Node("b", np.arange(120.0), held))
    edge = Edge(0, 1, table, tail_class=classes, head_class=classes)
    found = _eliminated(build_network(Problem(nodes, (edge,), None, 1)))
    assert found.cells < 60


def test_messages_that_stall_on_cycles_are_replaced_by_elimination() -> None:
    """Free ladder: after elimination the bound is the optimum, with hardly more work."""
    problem = ladder(20, 6, 1)
    net = build_network(problem)
    messages = Dual(Relaxed(net))
    weak = messages.evaluate(messages.best_prices, 200)
    exact = Dual(Relaxed(net))
    assert exact.eliminate()
    strong = exact.evaluate(exact.best_prices)
    assert strong > 1.01 * weak
    result = solve(problem, solver="lagrangian", round_limit=3)
    assert result.objective == pytest.approx(strong, rel=1e-6)
    assert result.gap is not None and result.gap <= 1e-3
    assert result.work < 1e7


def test_prices_of_memory_rise_to_the_relaxation_of_exact_values() -> None:
    problem = ladder(6, 4, 2, limit_bytes=14)
    net = build_network(problem)
    messages, exact = Dual(Relaxed(net)), Dual(Relaxed(net))
    assert exact.eliminate()
    for dual in (messages, exact):
        dual.evaluate(dual.best_prices, 15)
        dual.improve(40)
    assert exact.bound >= messages.bound - 1e-6
    result = solve(problem, solver="auto", gap=1e-4, round_limit=20)
    assert result.objective is not None
    assert exact.bound <= result.objective + 1e-9
