"""The referee against its plain version, on random problems and solutions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiwi.solver import Edge, Interval, Node, Problem, evaluate
from kiwi.solver.columns import MOST_KNOWN, Columns
from tests.solver.plain_referee import plainly
from tests.solver.random_problems import loaded_problem


def _with_more(problem: Problem, seed: int) -> Problem:
    """Returns the same problem with parts of costs, and with some of the memory on the host."""
    random = np.random.default_rng(seed)

    def parts(costs: np.ndarray) -> dict[str, np.ndarray]:
        share = random.random()
        return {"compute": share * costs, "communication": costs - share * costs}

    def on_host(node: Node) -> tuple[tuple[Interval, ...], ...]:
        return node.usage[::-1] if random.random() < 0.5 else ()

    finite = [np.isfinite(part.costs).all() for part in (*problem.nodes, *problem.edges)]
    nodes = tuple(
        replace(n, parts=parts(n.costs) if is_finite else {}, host_usage=on_host(n))
        for n, is_finite in zip(problem.nodes, finite, strict=False)
    )
    edges = tuple(
        replace(e, parts=parts(e.costs) if is_finite else {})
        for e, is_finite in zip(problem.edges, finite[len(nodes) :], strict=True)
    )
    return replace(problem, nodes=nodes, edges=edges, host_limit_bytes=20)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_equals_its_plain_twin(seed: int, solution_seed: int) -> None:
    problem = _with_more(loaded_problem(seed), seed)
    random = np.random.default_rng(solution_seed)
    for _ in range(3):
        solution = [int(random.integers(node.costs.size)) for node in problem.nodes]
        found, plain = evaluate(problem, solution), plainly(problem, solution)
        assert found.cost == pytest.approx(plain.cost, rel=1e-12, abs=1e-12)
        assert found.loads == plain.loads
        assert found.parts == plain.parts
        assert found.usage_bytes.tolist() == plain.usage_bytes
        assert found.peak_bytes == max(plain.usage_bytes, default=0)
        assert found.host_peak_bytes == plain.host_peak_bytes
        over = problem.limit_bytes is not None and found.peak_bytes > problem.limit_bytes
        over_host = found.host_peak_bytes > 20
        assert len(found.violations) == plain.forbidden + over + over_host


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_sums_are_those_of_one_after_the_other(seed: int) -> None:
    """To the last bit: plans and their files name these numbers."""
    problem = loaded_problem(seed)
    problem = replace(
        problem,
        nodes=tuple(replace(n, loads=()) for n in problem.nodes),
        edges=tuple(replace(e, loads=(), costs=e.costs / 3) for e in problem.edges),
    )
    solution = [0] * len(problem.nodes)
    assert evaluate(problem, solution).cost == plainly(problem, solution).cost


def test_what_names_no_option_is_a_violation() -> None:
    node = Node("a", np.zeros(2), ((), ()))
    problem = Problem((node,), (), None, 1)
    assert evaluate(problem, [2]).violations == ("Node 'a' has no option 2, only 2.",)
    assert evaluate(problem, [0, 0]).violations == ("2 choices for 1 nodes.",)
    assert evaluate(problem, [-1]).parts == {}


def test_problems_that_differ_by_their_limit_share_columns() -> None:
    problem = loaded_problem(3)
    limited = replace(problem, limit_bytes=7)
    assert Columns.of(limited) is Columns.of(problem)
    others = [loaded_problem(seed) for seed in range(MOST_KNOWN)]
    assert len({id(Columns.of(other)) for other in others}) == MOST_KNOWN
    assert Columns.of(limited) is Columns.of(problem)


def test_equal_tables_stand_once() -> None:
    table = np.arange(6.0).reshape(2, 3)
    nodes = [Node(f"n{k}", np.zeros(2 + k % 2), ((),) * (2 + k % 2)) for k in range(6)]
    edges = [Edge(k, k + 1, table if k % 2 == 0 else table.T) for k in range(5)]
    columns = Columns.of(Problem(tuple(nodes), tuple(edges), None, 1))
    assert columns.tables.values.size == 2 * table.size
