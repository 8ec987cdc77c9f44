"""The bound that no plan of a configuration is expected to beat."""

from dataclasses import replace

import kiwi
from kiwi.planners import planning as module
from kiwi.planners.planning import quick_bound
from kiwi.solver import SolveStatus
from tests.helpers.perceptron import step_of
from tests.helpers.planning import array


def bound_and_plan(budget):
    train_step, weights = step_of(4, 64, "tanh")
    args = weights, array(2048, 64)
    options = {"mesh_shape": (2,), "verify": None, "effort": "quick", "memory_budget": budget}
    planned = kiwi.jit(train_step, **options)
    return quick_bound(planned.traced(*args), planned.settings), planned.plan(*args)


def test_no_plan_is_faster_and_less_memory_takes_no_less_time():
    free_seconds, free = bound_and_plan("1TiB")
    tight_seconds, tight = bound_and_plan(int(0.9 * free.estimate.peak_bytes))
    assert 0 < free_seconds <= free.estimate.step_seconds
    assert free_seconds <= tight_seconds <= tight.estimate.step_seconds


def test_where_little_work_finds_no_solution_the_bound_is_that_without_a_budget(monkeypatch):
    """The plan may be of another selection of residencies, which this problem says nothing of."""
    solved = module._solved

    def nothing_within_a_limit(problem, tools):
        found = solved(problem, tools)
        if problem.problem.limit_bytes is None:
            return found
        status = SolveStatus.NO_SOLUTION_FOUND
        return replace(found, status=status, solution=None, objective=None, bound=1e3)

    free_seconds, _ = bound_and_plan("1TiB")
    monkeypatch.setattr(module, "_solved", nothing_within_a_limit)
    assert bound_and_plan("1TiB")[0] == free_seconds
