"""The flat form of a problem: shared tables, and no loss."""

import numpy as np
import pytest

from benchmarks.solver.layered import layered_problem
from kiwi.solver import Edge, Node, Problem
from kiwi.solver.network import build_network


def dense(problem: Problem, tail: int, head: int) -> np.ndarray:
    """Returns the sum of all edges between two nodes, from the edges themselves."""
    total = np.zeros((problem.nodes[tail].costs.size, problem.nodes[head].costs.size))
    for edge in problem.edges:
        if {edge.tail, edge.head} == {tail, head}:
            rows, columns = (range(n) for n in edge.option_counts)
            costs = np.array([[edge.costs[edge.cell(a, b)] for b in columns] for a in rows])
            total += costs if edge.tail == tail else costs.T
    return total


@pytest.mark.parametrize("layers", [1, 3])
def test_every_edge_finds_its_costs(layers: int) -> None:
    problem = layered_problem(layers, seed=2)
    net = build_network(problem)
    for edge in range(net.edge_count):
        rows, columns = net.lines(edge)
        found = net.edge_table(edge)[np.ix_(rows, columns)]
        assert np.array_equal(found, dense(problem, *net.ends[edge].tolist()))


def test_more_equal_layers_need_no_more_tables() -> None:
    few, many = (build_network(layered_problem(layers, seed=2)) for layers in (3, 9))
    assert many.edge_count > 2.5 * few.edge_count
    assert many.cell_count > 2.5 * few.cell_count
    assert len(many.table) == len(few.table)


def test_equal_tables_in_arrays_of_their_own_are_shared_too() -> None:
    node = Node("n", np.zeros(2), ((), ()))
    costs = np.array([[0.0, 1.0], [np.inf, 3.0]])
    edges = (Edge(0, 1, costs), Edge(1, 2, costs.copy()), Edge(3, 2, costs))
    net = build_network(Problem((node,) * 4, edges, None, 0))
    assert len(net.table) == 8 and net.cell_count == 12  # the last one is transposed
    assert net.over_edges(np.maximum, np.minimum(net.table, 9.0)).tolist() == [9.0, 9.0, 9.0]
    assert net.over_edges(np.add, np.minimum(net.table, 9.0)).tolist() == [13.0, 13.0, 13.0]


def test_unused_lines_do_not_mix_up_shared_tables() -> None:
    """Two edges share an array, but their options use different lines of it."""
    node = Node("n", np.zeros(2), ((), ()))
    costs = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    edges = (
        Edge(0, 1, costs, tail_class=np.array([0, 1])),
        Edge(1, 2, costs, tail_class=np.array([0, 2])),
    )
    net = build_network(Problem((node,) * 3, edges, None, 0))
    for edge, expected in enumerate(([[0, 1], [2, 3]], [[0, 1], [4, 5]])):
        rows, columns = net.lines(edge)
        assert net.edge_table(edge)[np.ix_(rows, columns)].tolist() == expected
