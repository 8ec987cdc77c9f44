"""Plans are compared including the copies of operands that they keep."""

from dataclasses import replace

import pytest

import kiwi
from benchmarks.solver.generated.sources import as_recorded
from examples import mlp
from kiwi.campaign import problem_search, shares
from kiwi.campaign.copies_kept import Keeping
from kiwi.campaign.tools import Tools
from kiwi.problem.build import NONE_KEPT
from kiwi.problem.solved import Start
from kiwi.solver import evaluate
from kiwi.solver.effort import Allowance

CONFIG = mlp.MlpConfig(layers=3, width=1024, batch=16384, optimizer="adam")


def planned(**options):
    return kiwi.plan(
        mlp.make_train_step(CONFIG),
        mlp.abstract_state(CONFIG),
        mlp.abstract_batch(CONFIG),
        mesh_shape=(2, 4),
        profile=replace(as_recorded("h100-sxm"), backend="cpu"),
        donate_argnums=0,
        effort="quick",
        verify="cpu",  # which groups additions apart from matmuls
        **options,
    )


def shard_counts(plan):
    """Returns the number of shards of each parameter."""
    program = plan.execution.units.graph.program
    carried = set(plan.origin.planning.fixed.carried.values())
    return {
        sharding.shard_count(plan.mesh.shape)
        for argument, sharding in enumerate(plan.execution.argument_shardings)
        if argument in carried and program.values[program.arguments[argument]].shape
    }


@pytest.fixture(scope="module")
def free():
    return planned()


def test_parameters_are_sharded_fully_where_they_are_gathered_once(free, monkeypatch):
    assert shard_counts(free) == {8} and free.execution.kept_copies
    monkeypatch.setattr(shares, "MOST_OTHER_ARGUMENT_SHARDINGS", 0)
    alone = planned()
    assert shard_counts(alone) != {8}
    assert (
        free.estimate.step_seconds
        < shares.OTHER_ARGUMENT_SHARDINGS_GAIN * alone.estimate.step_seconds
    )


def test_what_is_stated_of_the_solution_is_the_evaluators(free):
    found = free.solve_result
    assert found.objective == pytest.approx(
        evaluate(free.origin.planning.problem, found.solution).cost
    )
    assert found.bound <= found.objective


def test_shardings_that_were_slower_are_not_searched_again(free, monkeypatch):
    offered = []

    def keeping(planning, corrected, found, starts, solve, allowed):
        offered.append(len(starts()))
        return Keeping(tuple(found), NONE_KEPT, 1.0, Allowance(0.0, 0.0), compared=1)

    monkeypatch.setattr(problem_search, "fastest_keeping", keeping)
    origin, budget_bytes = free.origin, 2 * free.estimate.peak_bytes
    settings = replace(origin.settings, memory_budget_bytes=budget_bytes)
    start = Start(origin.planning, free.solve_result.solution)
    search = problem_search.ProblemSearch(origin.planner, origin.step, Tools(settings), start)
    for limit_bytes in (budget_bytes, budget_bytes - 1):
        search.propose(limit_bytes)
    assert offered[0] > 0 and offered[1] == 0
