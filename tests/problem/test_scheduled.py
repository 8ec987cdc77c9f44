"""The price of a schedule equals the price of the joint problem's solution."""

import functools
import math
import random

import jax
import pytest

from examples import gpt, mlp
from kiwi.emit.execution import build_execution
from kiwi.hlo.grouping import build_units
from kiwi.plans.estimate import estimate_schedule, estimate_solution
from kiwi.problem.solved import Solved
from kiwi.problem.translation import copies_that_follow
from kiwi.solver import evaluate
from kiwi.solver.settle import settled
from tests.helpers.loops import LOOPS
from tests.helpers.planning import array, problem_of, step_graph, units_of

FLIPS = 40
STEPS = {"mlp": (mlp, mlp.SIZES["tiny"]), "gpt": (gpt, gpt.SIZES["tiny"])}


@functools.cache
def units_of_step(name):
    graph = step_graph(*STEPS[name])
    return build_units(graph, frozenset(graph.program.arguments[:4]))


@functools.cache
def units_of_loop(name):
    own = LOOPS[name]()
    shapes = jax.tree.map(lambda x: array(*x.shape, dtype=x.dtype), own.args)
    leaves, tree = jax.tree.flatten(shapes)
    return units_of(lambda *flat: own.step(*jax.tree.unflatten(tree, flat)), *leaves)


def some_solution(planning, seed):
    """Returns random shardings and residencies. Every recomputed unit finds its operands, and
    values are held only as long as they are read."""
    draw = random.Random(seed)
    counts = [len(n.costs) for n in planning.problem.nodes]
    choices = [0] * (len(planning.sources) + len(planning.unit_nodes))
    for _ in range(FLIPS):
        place = draw.randrange(len(choices))
        before, choices[place] = choices[place], draw.randrange(counts[place])
        found = evaluate(planning.problem, copies_that_follow(planning, choices))
        if not math.isfinite(found.cost):
            choices[place] = before
    return settled(planning.problem, copies_that_follow(planning, choices))


def assert_priced_alike(planning, solution):
    solved = Solved(planning, solution)
    wanted, schedule = estimate_solution(solved), build_execution(solved).schedule
    found = estimate_schedule(solved, schedule)
    assert found.memory_bytes == wanted.memory_bytes
    assert found.peak_bytes == wanted.peak_bytes
    assert found.peak_unit == wanted.peak_unit
    assert found.collective_uses == wanted.collective_uses
    assert found.step_seconds == pytest.approx(wanted.step_seconds)
    assert found.recompute_seconds == pytest.approx(wanted.recompute_seconds)
    assert found.time_shares == pytest.approx(wanted.time_shares)
    return schedule


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mesh_shape", [(1,), (2, 2)])
@pytest.mark.parametrize("name", STEPS)
def test_the_schedule_of_a_solution_is_priced_as_the_solution(name, mesh_shape, seed):
    planning = problem_of(units_of_step(name), mesh_shape)
    schedule = assert_priced_alike(planning, some_solution(planning, seed))
    assert len(schedule.steps) > len(planning.units.units)


@pytest.mark.parametrize("name", LOOPS)
def test_so_are_the_units_of_loops(name):
    planning = problem_of(units_of_loop(name), (2,))
    for seed in range(3):
        assert_priced_alike(planning, some_solution(planning, seed))
