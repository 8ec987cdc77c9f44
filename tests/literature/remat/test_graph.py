import pytest

from kiwi.errors import InvalidProblemError
from kiwi.literature.remat.graph import Operator, RematGraph, Value, single_output_graph


def test_derived_facts_of_a_graph_with_several_outputs():
    graph = RematGraph(
        (Operator("f", 1.0, (0,), (1, 2)), Operator("g", 2.0, (1, 2), (3,))),
        (Value("x", 5), Value("a", 1), Value("b", 2), Value("y", 3)),
        (0, 1),
    )
    assert graph.producer == (-1, 0, 0, 1)
    assert graph.readers == ((0,), (1,), (1,), ())
    assert graph.resident_bytes == 5
    assert graph.once_seconds == 3.0
    assert graph.predecessors(1) == (0,)


def test_repeated_edges_count_once():
    graph = single_output_graph([1.0, 1.0], [1, 1], [(0, 1), (0, 1)])
    assert graph.operators[1].inputs == (0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, 1.0], [1, 1], [(1, 0)]), "comes before"),
        (([1.0, -1.0], [1, 1], []), "negative cost"),
        (([1.0, 1.0], [1, -1], []), "negative size"),
        (([1.0, float("nan")], [1, 1], []), "negative cost"),
    ],
)
def test_unusable_graphs_are_refused(arguments, message):
    with pytest.raises(InvalidProblemError, match=message):
        single_output_graph(*arguments)


def test_order_must_contain_every_operator_once():
    with pytest.raises(InvalidProblemError, match="exactly once"):
        single_output_graph([1.0, 1.0], [1, 1], [], order=(0, 0))


def test_a_value_has_one_writer():
    operators = (Operator("f", 1.0, (), (0,)), Operator("g", 1.0, (), (0,)))
    with pytest.raises(InvalidProblemError, match="written by another"):
        RematGraph(operators, (Value("v", 1),), (0, 1))


def test_unknown_values_are_refused():
    with pytest.raises(InvalidProblemError, match="unknown value"):
        RematGraph((Operator("f", 1.0, (4,), ()),), (Value("v", 1),), (0,))
    with pytest.raises(InvalidProblemError, match="results"):
        RematGraph((), (), (), frozenset({1}))
