"""Among options of equal cost, the one that holds least memory is taken."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kiwi.solver import evaluate
from kiwi.solver.problem import Edge, Interval, Node, Problem
from kiwi.solver.settle import settled
from tests.solver.random_problems import random_problem


def node(costs, *lengths):
    return Node("n", np.array(costs), tuple((Interval(0, end, 4),) for end in lengths))


def test_the_shorter_of_two_equal_lives_is_taken():
    problem = Problem((node([1.0, 1.0, 1.0], 5, 2, 3),), (), None, 6)
    assert settled(problem, [0]) == (1,)


def test_not_at_a_higher_cost():
    problem = Problem((node([1.0, 2.0], 5, 2),), (), None, 6)
    assert settled(problem, [0]) == (0,)


def test_not_where_a_neighbour_forbids_it():
    edge = Edge(0, 1, np.array([[0.0], [np.inf]]))
    problem = Problem((node([1.0, 1.0], 5, 2), node([0.0], 1)), (edge,), None, 6)
    assert settled(problem, [0, 0]) == (0, 0)


def test_not_where_it_holds_more_at_some_time():
    other = Node("n", np.ones(2), ((Interval(0, 5, 4),), (Interval(5, 6, 4),)))
    assert settled(Problem((other,), (), None, 6), [0]) == (0,)


@given(st.integers(0, 2**32 - 1))
def test_cost_and_peak_never_rise(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(seed)
    before = [int(rng.integers(n.costs.size)) for n in problem.nodes]
    after = settled(problem, before)
    one, other = evaluate(problem, before), evaluate(problem, after)
    assert other.cost <= one.cost
    assert np.all(np.asarray(other.usage_bytes) <= np.asarray(one.usage_bytes))


def test_what_a_node_is_held_for_is_settled_first():
    """The second needs the first for long only in an option that is no better than another."""
    edge = Edge(0, 1, np.array([[0.0, 0.0], [0.0, np.inf]]))
    problem = Problem((node([1.0, 1.0], 5, 2), node([0.0, 0.0], 1, 1)), (edge,), None, 6)
    assert settled(problem, [0, 1]) == (1, 0)
