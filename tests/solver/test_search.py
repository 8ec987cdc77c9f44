"""The parts of the local search against plain computations."""

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kiwi.solver.network import build_network
from kiwi.solver.peak import add, new_tree
from kiwi.solver.relaxed import cost_of, priced_costs, usage_of
from kiwi.solver.search import forced_moves, forest_descent, seed_random, tree_descent
from kiwi.solver.trees import grow_forest, new_workspace, optimise_tree, release
from tests.solver.random_problems import random_problem

BIG = 1e6


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.integers(0, 10**6))
def test_segment_tree_follows_plain_sums(times: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    usage = rng.integers(0, 100, times)
    tree = new_tree(usage.astype(np.int64))
    for _ in range(20):
        begin = int(rng.integers(0, times))
        end = int(rng.integers(begin + 1, times + 1))
        amount = int(rng.integers(-20, 20))
        usage[begin:end] += amount
        add(tree, begin, end, amount)
        assert tree.top[1] == usage.max()


def _network(seed: int):
    net = build_network(random_problem(seed))
    return replace(net, table=np.minimum(net.table, BIG)), np.minimum(net.cost, BIG)


def test_a_tree_is_set_to_its_optimum_and_its_change_of_cost_is_true() -> None:
    changed = 0
    for seed in range(100):
        net, unary = _network(seed)
        rng = np.random.default_rng(seed)
        work = new_workspace(net)
        sizes = np.diff(net.option_start)
        choice = np.array([int(rng.integers(size)) for size in sizes])
        before = cost_of(net, unary, choice)
        count = grow_forest(net, work, rng.permutation(net.node_count), net.node_count)
        members = work.members[:count].copy()
        others = choice.copy()
        change = optimise_tree(net, work, unary, choice, count)
        release(net, work, count)
        after = cost_of(net, unary, choice)
        assert np.isclose(after - before, change, rtol=1e-9, atol=1e-6)
        assert np.isclose(after, _best_of(net, unary, others, members))
        assert not work.inside.any() and not work.touched.any()
        changed += after < before
    assert changed > 50


def _best_of(net, unary, choice, members) -> float:
    sizes = np.diff(net.option_start)
    best = np.inf
    for options in itertools.product(*(range(int(sizes[i])) for i in members)):
        trial = choice.copy()
        trial[members] = options
        best = min(best, float(cost_of(net, unary, trial)))
    return best


def test_moves_under_the_limit_stay_under_it_and_never_cost_more() -> None:
    seed_random(0)
    for seed in range(60):
        net, unary = _network(seed)
        choice = np.zeros(net.node_count, dtype=np.int64)
        work = new_workspace(net)
        for move, extra in ((tree_descent, ()), (forced_moves, (1e-12,))):
            usage = usage_of(net, choice)
            limit = max(int(usage.max(initial=0)), 0)
            tree, limited = new_tree(usage), replace(net, limit_bytes=limit)
            before = cost_of(net, unary, choice)
            change = move(limited, work, unary, choice, tree, 30, 5, *extra)
            after = cost_of(net, unary, choice)
            assert np.isclose(after - before, change, rtol=1e-9, atol=1e-5)
            assert after <= before + 1e-6
            assert usage_of(net, choice).max(initial=0) <= limit
            if len(net.times):
                assert tree.top[1] == usage_of(net, choice).max()


def test_free_descent_reports_its_gain() -> None:
    seed_random(1)
    for seed in range(30):
        net, unary = _network(seed)
        choice = np.zeros(net.node_count, dtype=np.int64)
        before = cost_of(net, unary, choice)
        change = forest_descent(net, new_workspace(net), unary, choice, 3)
        assert np.isclose(cost_of(net, unary, choice) - before, change, atol=1e-5)


def test_priced_costs_charge_every_interval() -> None:
    for seed in range(30):
        net, unary = _network(seed)
        prices = np.random.default_rng(seed).random(len(net.times))
        priced = priced_costs(net, unary, prices)
        choice = np.zeros(net.node_count, dtype=np.int64)
        expected = cost_of(net, unary, choice) + prices @ usage_of(net, choice)
        assert np.isclose(cost_of(net, priced, choice), expected)
