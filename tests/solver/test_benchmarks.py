"""The benchmark's own check of contest solutions, and the shape of its problems."""

import gzip
import json

from benchmarks.solver.contest import check
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
