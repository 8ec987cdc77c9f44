"""Equal nodes as one node: the same cost and memory as in the whole problem."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiwi.solver import evaluate, solve
from kiwi.solver.problem import Edge, Interval, Node, Problem
from kiwi.solver.tied import EqualNodes, tied
from tests.solver.random_problems import loaded_problem

RESHARD = np.array([[0.0, 3.0], [2.0, 0.0]])
"""Costs from the layout of a layer to the layout of the next one."""


def layer(number):
    """Returns a node with two options: cheap and large, or expensive and small. The layers' memory
    overlaps at time 2."""
    usage = ((Interval(number, 3, 10),), (Interval(number, 3, 4),))
    return Node(f"layer {number}", np.array([1.0, 2.0]), usage)


def three_layers(limit_bytes):
    nodes = (layer(0), layer(1), layer(2))
    return Problem(nodes, (Edge(0, 1, RESHARD), Edge(1, 2, RESHARD)), limit_bytes, 3)


EQUAL = EqualNodes((0, 1, 2), np.array([[0, 1]] * 3))


def test_one_node_has_the_costs_the_memory_and_the_edges_of_all():
    (node,) = tied(three_layers(None), [EQUAL]).problem.nodes
    assert node.costs.tolist() == [3.0, 6.0]  # equal layers reshard nothing
    assert node.usage[1] == tuple(Interval(number, 3, 4) for number in range(3))


def test_a_layer_whose_options_stand_in_another_order_takes_those_that_mean_the_same():
    first, last = layer(0), layer(1)
    turned = Node("turned", last.costs[::-1].copy(), last.usage[::-1])
    edge = Edge(0, 1, RESHARD[:, ::-1].copy())
    problem = Problem((first, turned), (edge,), None, 3)
    small = tied(problem, [EqualNodes((0, 1), np.array([[0, 1], [1, 0]]))])
    assert small.problem.nodes[0].costs.tolist() == [2.0, 4.0]
    assert small.expanded((1,)) == (1, 0)


def test_edges_between_two_classes_add_up_and_keep_their_lines():
    other = Node("other", np.array([0.0, 0.0, 1.0]), ((),) * 3)
    columns = np.array([0, 1, 1])
    edges = [Edge(layer, layer + 3, RESHARD, head_class=columns) for layer in range(3)]
    back = Edge(4, 2, RESHARD.T, tail_class=columns)
    nodes = (layer(0), layer(1), layer(2), other, other, other)
    second = EqualNodes((3, 4, 5), np.array([[0, 1, 2]] * 3))
    (edge,) = tied(Problem(nodes, (*edges, back), None, 3), [EQUAL, second]).problem.edges
    assert (edge.tail, edge.head) == (0, 1)
    assert edge.costs[np.ix_(edge.tail_class, edge.head_class)].tolist() == [
        [0.0, 12.0, 12.0],
        [8.0, 0.0, 0.0],
    ]


@pytest.mark.parametrize("limit_bytes, taken, objective", [(30, 0, 3.0), (29, 1, 6.0)])
def test_the_limit_holds_for_all_layers_together(limit_bytes, taken, objective):
    small = tied(three_layers(limit_bytes), [EQUAL])
    result = solve(small.problem, solver="brute-force")
    assert small.expanded(result.solution) == (taken,) * 3
    assert result.objective == objective


def test_a_solution_of_the_whole_problem_is_tied_as_most_layers_decide():
    small = tied(three_layers(None), [EQUAL])
    assert small.tied((1, 0, 1)) == (1,)
    assert small.tied(small.expanded((0,))) == (0,)


@given(st.integers(0, 2**32 - 1))
def test_a_tied_solution_costs_and_holds_the_same_in_the_whole_problem(seed):
    problem, rng = loaded_problem(seed), np.random.default_rng(seed)
    small = tied(problem, _some_classes(problem, rng))
    choice = [int(rng.integers(node.costs.size)) for node in small.problem.nodes]
    own, whole = evaluate(small.problem, choice), evaluate(problem, small.expanded(choice))
    assert own.cost == pytest.approx(whole.cost)
    assert own.hidden == pytest.approx(whole.hidden)
    assert (own.usage_bytes == whole.usage_bytes).all()
    assert own.feasible == whole.feasible
    assert small.tied(small.expanded(choice)) == tuple(choice)


def _some_classes(problem, rng):
    """Yields random classes of nodes with equally many options, whose options correspond in any
    order."""
    by_size = {}
    for number in rng.permutation(len(problem.nodes)).tolist():
        by_size.setdefault(problem.nodes[number].costs.size, []).append(number)
    for size, members in by_size.items():
        count = int(rng.integers(1, len(members) + 1))
        options = [rng.permutation(size) for _ in range(count)]
        yield EqualNodes(tuple(members[:count]), np.array(options))
