"""The checks of a problem, and the referee's results."""

import numpy as np
import pytest

from kiwi.errors import InvalidProblemError
from kiwi.solver import Edge, Interval, Node, Problem, evaluate, solve


def node(name: str, costs, usage=None) -> Node:
    return Node(name, np.array(costs), usage or tuple(() for _ in costs))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interval(3, 2, 1), r"\[3, 2\) is not an interval"),
        (lambda: Interval(-1, 2, 1), r"\[-1, 2\) is not an interval"),
        (lambda: Interval(0, 2, -5), "holds -5 bytes"),
        (lambda: node("a", []), "'a' has no options"),
        (lambda: node("a", [np.nan]), "has the cost nan"),
        (lambda: node("a", [-np.inf, 1.0]), "has the cost -inf"),
        (lambda: Node("a", np.zeros(2), ((),)), "2 costs but 1 lists"),
        (lambda: Node("a", np.zeros((2, 2)), ((), ())), r"shape \(2, 2\)"),
        (lambda: Node("a", np.ones(1), ((),), {"x": np.zeros(1)}), "do not sum"),
        (lambda: Node("a", np.ones(1), ((),), {"x": np.ones(2)}), "part 'x' of shape"),
        (lambda: Edge(1, 1, np.zeros((1, 1))), "joins a node with itself"),
        (lambda: Edge(0, 1, np.zeros(3)), r"shape \(3,\)"),
        (lambda: Edge(0, 1, np.zeros((2, 2)), tail_class=np.array([2])), "classes 2 .. 2 for 2"),
        (lambda: Edge(0, 1, np.zeros((2, 2)), head_class=np.array([0.5])), "type float64"),
        (lambda: Problem((node("a", [1]),), (), -1, 0), "limit is -1 bytes"),
        (lambda: Problem((node("a", [1e300]),), (), 5, 0), "costs sum to as much as 1e.300"),
        (
            lambda: Problem((node("a", [1], ((Interval(0, 1, 2**62),),)),), (), 5, 1),
            "can hold 4611686018427387904 bytes together",
        ),
        (
            lambda: Problem((node("a", [1], ((Interval(0, 9, 1),),)),), (), 5, 8),
            "until 9, behind the horizon 8",
        ),
        (
            lambda: Problem((node("a", [1]),), (Edge(0, 1, np.zeros((1, 1))),), 5, 0),
            "names node 1 of 1",
        ),
        (
            lambda: Problem(
                (node("a", [1]), node("b", [1, 2])), (Edge(0, 1, np.zeros((2, 1))),), 5, 0
            ),
            r"for \(2, 1\) options, expected \(1, 2\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(make, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        make()


def test_a_limit_beyond_64_bits_never_binds() -> None:
    held = Problem((node("a", [1.0], ((Interval(0, 1, 2**40),),)),), (), 2**80, 1)
    assert solve(held).solution == (0,)


def worked_problem() -> Problem:
    """Returns a problem with two nodes and two times, solved by hand in the tests below."""
    first = Node(
        "first",
        np.array([3.0, 5.0]),
        ((Interval(0, 2, 4),), (Interval(0, 1, 1), Interval(1, 2, 2))),
        {"compute": np.array([2.0, 5.0]), "communication": np.array([1.0, 0.0])},
    )
    second = Node("second", np.array([1.0, np.inf, 2.0]), ((Interval(1, 2, 3),), (), ()))
    shared = Edge(
        0,
        1,
        np.array([[7.0, np.inf], [0.5, 1.0]]),
        {"resharding": np.array([[7.0, np.inf], [0.5, 1.0]])},
        head_class=np.array([0, 0, 1]),
    )
    return Problem((first, second), (shared, Edge(1, 0, np.ones((3, 2)))), 6, 2)


def test_the_referee_adds_up_costs_parts_and_memory() -> None:
    priced = evaluate(worked_problem(), (1, 0))
    assert priced.feasible
    assert priced.cost == 5.0 + 1.0 + 0.5 + 1.0
    assert priced.parts == {"compute": 5.0, "communication": 0.0, "resharding": 0.5}
    assert priced.usage_bytes.tolist() == [1, 5]
    assert (priced.peak_bytes, priced.peak_time) == (5, 1)


def test_the_referee_names_every_violation() -> None:
    problem = worked_problem()
    assert evaluate(problem, (0, 0)).violations == ("7 bytes at time 1, the limit is 6.",)
    assert "forbidden together" in evaluate(problem, (0, 2)).violations[0]
    assert "Option 1 of node 'second' is forbidden" in evaluate(problem, (0, 1)).violations[0]
    assert evaluate(problem, (0,)).violations == ("1 choices for 2 nodes.",)
    assert "no option 2, only 2" in evaluate(problem, (2, 0)).violations[0]


def test_nothing_to_choose() -> None:
    priced = evaluate(Problem((), (), 0, 0), ())
    assert (priced.cost, priced.peak_bytes, priced.feasible) == (0.0, 0, True)
