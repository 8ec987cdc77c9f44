"""The benchmark's own check of contest solutions, and the shape of its problems."""

import gzip
import json

import numpy as np

from benchmarks.solver.contest import check
from benchmarks.solver.generated.cases import POINTS, case, fixed, instance, scaled
from benchmarks.solver.generated.measure import Reference, measure
from benchmarks.solver.layered import OPERATORS_PER_LAYER, layered_problem, with_budget
from kiwi.solver import evaluate, solve
from kiwi.solver.contest import read_contest
from tests.solver.test_contest import document


def test_the_check_agrees_with_the_referee(tmp_path) -> None:
    path = tmp_path / "instance.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document()).encode()))
    problem = read_contest(path)
    assert check(path, [1, 1, 0]) == (int(evaluate(problem, (1, 1, 0)).cost), True)
    assert check(path, [0, 0, 0])[1] is False  # too much memory, and a forbidden pair
    assert check(path, [1, 2, 0])[1] is False  # a forbidden option
    assert check(path, None) == (None, False)


def test_layers_repeat_and_a_budget_binds() -> None:
    problem = layered_problem(3, seed=1)
    assert len(problem.nodes) == 2 * 3 * OPERATORS_PER_LAYER
    first, second = (problem.nodes[i] for i in (4, 4 + OPERATORS_PER_LAYER))
    assert (first.costs == second.costs).all()
    tight = with_budget(problem, 0.8)
    result = solve(tight)
    assert result.peak_bytes is not None and tight.limit_bytes is not None
    assert 0.9 * tight.limit_bytes < result.peak_bytes <= tight.limit_bytes


def test_halves_have_the_same_sources_and_numbers_their_cases() -> None:
    cases = [case(number) for number in range(80)]
    tuning = [made for made in cases if made.half == "tuning"]
    measured = [made for made in cases if made.half == "measured"]
    assert [made.name for made in tuning] == [made.name for made in measured]
    assert cases == [case(number) for number in range(80)]
    assert {made.point for made in measured} == set(POINTS)


def test_an_instance_follows_from_its_number_and_limit() -> None:
    made = case(1)
    first, again = instance(made), instance(made)
    limit_bytes = first.problem.limit_bytes
    assert limit_bytes == again.problem.limit_bytes
    pairs = zip(first.problem.nodes, again.problem.nodes, strict=True)
    assert all(np.array_equal(one.costs, other.costs) for one, other in pairs)
    assert instance(made, 10**6).problem.limit_bytes == 10**6
    row = measure(made, first, Reference(1e9, "highs", 0.0, 0.0, 0.0))
    assert row.excess == 0.0 and row.gap is not None and row.gap < 1e-3
    assert row.is_slower_than_by_hand  # than a sharding that costs nothing


def test_what_is_fixed_and_scaled_stays_the_same_problem() -> None:
    problem = layered_problem(1, seed=0)
    choice = solve(problem, solver="lagrangian", round_limit=1).solution
    assert choice is not None
    one = fixed(problem, {0: choice[0]})
    assert evaluate(one, choice).cost == evaluate(problem, choice).cost
    other = (choice[0] - 1, *choice[1:])
    assert not evaluate(one, other).feasible
    integral = scaled(problem, 1e9)
    assert abs(evaluate(integral, choice).cost / evaluate(problem, choice).cost / 1e9 - 1) < 1e-6
