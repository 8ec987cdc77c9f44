import pytest

from kiwi.errors import InvalidProblemError
from kiwi.literature.remat.graph import Operator, RematGraph, Value
from kiwi.literature.remat.simulate import (
    budget_from_share,
    largest_working_set,
    order_peak_bytes,
    simulate,
    violations,
)
from kiwi.solver.schedule import Schedule

from .graphs import random_general_graph, random_graph, training_chain
from .oracle import FIXED_ORDER, least_seconds


def test_memory_of_a_chain_by_hand():
    graph = training_chain(2)
    # f0 | f0 f1 | f1 b1 (+ f0, read by b1) | b1 b0
    assert simulate(graph, Schedule((0, 1, 2, 3))).memory_bytes == (10, 20, 30, 20)


def test_recomputation_splits_a_live_range():
    graph = training_chain(3)
    kept = simulate(graph, Schedule(graph.order))
    again = simulate(graph, Schedule((0, 1, 2, 3, 0, 4, 5)))
    assert kept.memory_bytes == (10, 20, 30, 40, 30, 20)
    assert again.memory_bytes == (10, 20, 20, 30, 20, 30, 20)
    assert again.compute_seconds == kept.compute_seconds + 1.0


def test_temporary_results_and_graph_inputs_count():
    graph = RematGraph(
        (Operator("f", 1.0, (0,), (1,), 7), Operator("g", 1.0, (0,), (2,), 0)),
        (Value("x", 100), Value("y", 1), Value("z", 2)),
        (0, 1),
        frozenset({1}),
    )
    assert simulate(graph, Schedule((0, 1))).memory_bytes == (108, 103)
    assert largest_working_set(graph).size_bytes == 108


def test_outputs_of_one_operator_end_apart():
    graph = RematGraph(
        (
            Operator("f", 1.0, (), (0, 1)),
            Operator("g", 1.0, (0,), ()),
            Operator("h", 1.0, (1,), ()),
        ),
        (Value("a", 8), Value("b", 1)),
        (0, 1, 2),
    )
    assert simulate(graph, Schedule((0, 1, 2))).memory_bytes == (9, 9, 1)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((0, 2, 1, 3), "before it is computed"),
        ((0, 1, 2), "never computed"),
        ((0, 1, 2, 3, 9), "unknown operator"),
    ],
)
def test_schedules_that_cannot_be_executed(steps, message):
    graph = training_chain(2)
    assert any(message in each for each in violations(graph, Schedule(steps)))
    with pytest.raises(InvalidProblemError, match=message):
        simulate(graph, Schedule(steps))


def test_an_operator_that_may_run_only_once_is_not_computed_again():
    graph = RematGraph((Operator("f", 1.0, (), (0,), 0, False),), (Value("a", 1),), (0,))
    assert violations(graph, Schedule((0,))) == []
    assert "only once" in violations(graph, Schedule((0, 0)))[0]


@pytest.mark.parametrize("make", [random_graph, random_general_graph])
@pytest.mark.parametrize("seed", range(12))
def test_without_recomputation_the_peak_is_the_least_budget_of_the_oracle(make, seed):
    graph = make(seed, 5)
    peak = simulate(graph, Schedule(graph.order)).peak_bytes
    assert least_seconds(graph, peak, FIXED_ORDER, most_copies=1) == graph.once_seconds
    assert least_seconds(graph, peak - 1, FIXED_ORDER, most_copies=1) is None


@pytest.mark.parametrize("seed", range(12))
def test_no_execution_fits_below_the_largest_working_set(seed):
    graph = random_general_graph(seed, 4)
    assert least_seconds(graph, largest_working_set(graph).size_bytes - 1) is None


def test_budget_as_a_share_is_rounded_up():
    graph = training_chain(3)
    assert order_peak_bytes(graph) == 40
    assert budget_from_share(graph, 0.7) == 28
    assert budget_from_share(graph, 0.51) == 21
