"""Reductions are exact: same costs, same memory, same optimum, for every assignment."""

import itertools
import math

import numpy as np
import pytest

from kiwi.solver import Edge, Interval, Node, Problem, evaluate, solve
from kiwi.solver.network import Network, build_network
from kiwi.solver.presolve.contract import contract
from kiwi.solver.presolve.dominate import dominate, propagate
from kiwi.solver.presolve.join import join
from kiwi.solver.presolve.pipeline import presolve
from kiwi.solver.presolve.reduction import Reduction
from kiwi.solver.presolve.times import drop_times
from kiwi.solver.relaxed import cost_of, usage_of
from tests.solver.random_problems import random_problem

SEEDS = range(150)


def agreeing_problem(seed: int) -> Problem:
    """A chain of nodes that must agree with their neighbours, with leaves and free nodes."""
    rng = np.random.default_rng(seed)
    options, count, horizon = int(rng.integers(2, 4)), int(rng.integers(3, 7)), 6
    nodes, edges = [], []
    for i in range(count):
        start = int(rng.integers(0, horizon))
        uses = [
            (Interval(start, horizon, int(rng.integers(0, 9))),) if rng.random() < 0.6 else ()
            for _ in range(options)
        ]
        nodes.append(Node(f"n{i}", rng.integers(0, 9, options).astype(float), tuple(uses)))
        if i:
            table = rng.integers(0, 9, (options, options)).astype(float)
            if rng.random() < 0.7:
                agree = rng.permutation(options)
                mask = np.ones((options, options), dtype=bool)
                mask[np.arange(options), agree] = False
                table[mask] = np.inf
            edges.append(Edge(int(rng.integers(0, i)), i, table))
    return Problem(tuple(nodes), tuple(edges), int(rng.integers(5, 25)), horizon)


def assignments(net: Network) -> itertools.product:
    return itertools.product(*(range(int(size)) for size in np.diff(net.option_start)))


@pytest.mark.parametrize("step", [contract, join, presolve])
@pytest.mark.parametrize("make", [random_problem, agreeing_problem])
def test_lifted_cost_and_memory_equal_those_before(step, make) -> None:
    merged = 0
    for seed in SEEDS:
        net = build_network(make(seed))
        reduction = step(net)
        if reduction.infeasible:
            continue
        merged += reduction.merged
        for choice in itertools.islice(assignments(reduction.net), 200):
            _check_lift(net, reduction, np.array(choice))
    assert merged > 0


def _check_lift(net: Network, reduction: Reduction, choice: np.ndarray) -> None:
    small, lifted = reduction.net, reduction.lift(choice)
    cost = cost_of(small, small.cost, choice)
    before = cost_of(net, net.cost, lifted)
    assert cost == before or math.isclose(cost, before, rel_tol=1e-12)
    kept = np.searchsorted(net.times, small.times)
    np.testing.assert_array_equal(usage_of(small, choice), usage_of(net, lifted)[kept])


@pytest.mark.parametrize("make", [random_problem, agreeing_problem])
def test_presolve_keeps_the_optimum(make) -> None:
    for seed in SEEDS:
        problem = make(seed)
        reduction = presolve(build_network(problem))
        best = solve(problem, solver="brute-force")
        costs = [math.inf]
        if not reduction.infeasible:
            for choice in assignments(reduction.net):
                priced = evaluate(problem, reduction.lift(np.array(choice)).tolist())
                if priced.feasible:
                    costs.append(priced.cost)
        expected = math.inf if best.objective is None else best.objective
        assert math.isclose(min(costs), expected, rel_tol=1e-9) or min(costs) == expected


def test_dropped_times_never_decide() -> None:
    dropped = 0
    for seed in SEEDS:
        net = build_network(random_problem(seed))
        small = drop_times(net)
        dropped += len(net.times) - len(small.times)
        for choice in itertools.islice(assignments(net), 200):
            fits = usage_of(net, np.array(choice)).max(initial=0) <= net.limit_bytes
            still = usage_of(small, np.array(choice)).max(initial=0) <= net.limit_bytes
            assert fits == still
    assert dropped > 0


def test_a_lowered_choice_lifts_to_itself() -> None:
    for seed in SEEDS:
        reduction = presolve(build_network(agreeing_problem(seed)))
        if reduction.infeasible:
            continue
        lifted = reduction.lift(np.zeros(reduction.net.node_count, dtype=np.int64))
        lowered = reduction.lower(lifted)
        assert lowered is not None
        np.testing.assert_array_equal(reduction.lift(lowered), lifted)


def test_propagation_forbids_what_no_neighbour_allows() -> None:
    nodes = tuple(Node(name, np.zeros(2), ((), ())) for name in "abc")
    only_first = np.array([[0.0, np.inf], [np.inf, np.inf]])
    edges = (Edge(0, 1, only_first), Edge(1, 2, np.array([[np.inf, 0.0], [0.0, 0.0]])))
    cost = propagate(build_network(Problem(nodes, edges, None, 1)))
    np.testing.assert_array_equal(np.isfinite(cost), [True, False, True, False, False, True])


def test_dominated_options_go() -> None:
    """Of n, option 1 costs more and holds more than 0, option 2 costs more but holds less. Of m,
    both cost the same then: one stays."""
    uses = tuple((Interval(0, 2, size),) for size in (5, 6, 4))
    node = Node("n", np.array([1.0, 2.0, 2.0]), uses)
    other = Node("m", np.zeros(2), ((), ()))
    edge = Edge(0, 1, np.array([[1.0, 1.0], [1.0, 2.0], [0.5, 0.5]]))
    cost = dominate(build_network(Problem((node, other), (edge,), 4, 2)))
    np.testing.assert_array_equal(np.isfinite(cost), [True, False, True, False, True])


def test_dominance_keeps_the_optimum() -> None:
    dropped = 0
    for seed in SEEDS:
        problem = random_problem(seed)
        net = build_network(problem)
        cost = dominate(net)
        dropped += int((np.isfinite(net.cost) & np.isinf(cost)).sum())
        best = solve(problem, solver="brute-force").objective
        costs = [
            cost_of(net, cost, np.array(choice))
            for choice in assignments(net)
            if usage_of(net, np.array(choice)).max(initial=0) <= net.limit_bytes
        ]
        least = min(costs, default=math.inf)
        assert math.isclose(least, math.inf if best is None else best) or least == best
    assert dropped > 50


def test_nodes_that_must_agree_become_one() -> None:
    agree = np.where(np.eye(3, dtype=bool), 1.0, np.inf)
    uses = tuple((Interval(0, 2, size),) for size in (7, 6, 5))
    nodes = tuple(Node(f"n{i}", np.arange(3.0), uses) for i in range(4))
    edges = tuple(Edge(i, i + 1, agree) for i in range(3))
    reduction = presolve(build_network(Problem(nodes, edges, 24, 2)))
    assert reduction.net.node_count == 1
    np.testing.assert_array_equal(reduction.net.cost, [3.0, 7.0, 11.0])
    assert usage_of(reduction.net, np.array([2])).max() == 20


def test_edges_of_a_node_that_merging_leaves_alone_keep_their_costs() -> None:
    """Two nodes agree with a third, and forbid one of its two options between themselves: its
    edges to a ring of others are what decides about these."""
    agree, forbids_one = np.where(np.eye(2) > 0, 0.0, np.inf), np.array([[0.0, 0.0], [0.0, np.inf]])
    rng = np.random.default_rng(0)
    for _ in range(20):
        sizes = (2, 2, 2, 3, 3, 3)
        nodes = tuple(Node(f"n{i}", rng.random(size), ((),) * size) for i, size in enumerate(sizes))
        edges = [Edge(0, 1, agree), Edge(0, 2, agree), Edge(1, 2, forbids_one)]
        edges += [Edge(0, i, rng.random((2, 3))) for i in (3, 4, 5)]
        edges += [Edge(i, j, rng.random((3, 3))) for i, j in ((3, 4), (4, 5), (3, 5))]
        problem = Problem(nodes, tuple(edges), None, 1)
        best = solve(problem, solver="brute-force").objective
        reduction = presolve(build_network(problem))
        costs = [
            cost_of(reduction.net, reduction.net.cost, np.array(c))
            for c in assignments(reduction.net)
        ]
        assert best is not None and math.isclose(min(costs), best)
