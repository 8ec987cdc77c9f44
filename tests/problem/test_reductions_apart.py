"""The cost of keeping the mean and the variance of rows while other values are recomputed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.hlo.units import UnitGraph
from kiwi.problem.build import PlanningProblem, UnitNode
from kiwi.solver import evaluate
from tests.helpers.planning import WAITING, array, problem_of

COUNT, WIDTH = 4096, 2048
ROWS, MEAN, VARIANCE, NORMALISED = range(4)
"""The indices of the first units."""

LAUNCH_SECONDS = WAITING.kernel_launch_seconds
PASS_SECONDS = 4 * COUNT * WIDTH / WAITING.sustained_memory_bytes_per_second
COLUMN_SECONDS = PASS_SECONDS / WIDTH
KERNELS_SECONDS = 2 * PASS_SECONDS + 3 * COLUMN_SECONDS
"""The seconds of both reductions. The variance also reads the mean, and each reduction writes a
column."""


def loss(inputs: Any, first: Any, second: Any) -> Any:
    rows = inputs @ first
    centred = rows - jnp.mean(rows, -1, keepdims=True)
    normalised = centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-6)
    return jnp.sum(jnp.sin(normalised @ second))


def units_of_gradient(function: Any, *roots: str) -> UnitGraph:
    """Returns the units of a function's gradient. Checks that it begins with units of these
    roots."""
    gradient = jax.grad(function, argnums=(1, 2))
    arguments = array(COUNT, 64), array(64, WIDTH), array(WIDTH, 64)
    plan = kiwi.plan(gradient, *arguments, mesh_shape=(1,), profile=WAITING, verify=None)
    found = plan.execution.units
    first = found.units[: len(roots)]
    assert tuple(found.graph.program.equations[unit.root].name for unit in first) == roots
    return found


@pytest.fixture(scope="module")
def units() -> UnitGraph:
    return units_of_gradient(loss, "dot_general", "reduce_sum", "reduce_sum", "mul")


@pytest.fixture(scope="module")
def problem(units: UnitGraph) -> PlanningProblem:
    return problem_of(units, (1,), profile=WAITING)


def seconds(problem: PlanningProblem, *recomputed: int) -> float:
    """Returns the step time if these units are recomputed and all others kept."""
    options = [_option(node, node.unit in recomputed) for node in problem.unit_nodes]
    copies = [0] * len(problem.copies)
    found = evaluate(problem.problem, [0] * len(problem.sources) + options + copies)
    assert np.isfinite(found.cost)
    return found.cost


def _option(node: UnitNode, recomputes: bool) -> int:
    fitting = node.options_where(lambda _, residency: residency.recomputes == recomputes)

    def life(option: int) -> tuple[int, int]:
        residency = node.choice(option)[1]
        return -(residency.recompute_at or 0), residency.end

    return max(fitting, key=life)


@pytest.mark.parametrize("recomputed", [ROWS, NORMALISED])
def test_reductions_are_kernels_unless_recomputed_too(problem, recomputed):
    """The rows are there a second time, or what ends the kernel is computed again."""
    apart = seconds(problem, recomputed)
    fused = seconds(problem, recomputed, MEAN, VARIANCE)
    assert apart - fused == pytest.approx(KERNELS_SECONDS - 4 * LAUNCH_SECONDS + 2 * LAUNCH_SECONDS)


def test_reductions_read_with_the_same_rows_cost_a_launch(problem):
    """A kernel of the backward pass reduces the rows again."""
    kept, again = seconds(problem), seconds(problem, MEAN, VARIANCE)
    assert again - kept == pytest.approx(2 * LAUNCH_SECONDS)


def attended(inputs: Any, first: Any, second: Any) -> Any:
    return jnp.sum(jnp.sin(jax.nn.softmax(inputs @ first) @ second))


def test_a_sum_of_exponentials_is_a_kernel_of_its_own_unless_it_is_recomputed():
    """The backward pass reads it, too; where the softmax is computed again both its kernels reduce
    the rows for themselves."""
    units = units_of_gradient(attended, "dot_general", "reduce_max", "reduce_sum", "div")
    problem = problem_of(units, (1,), profile=WAITING)
    largest, exponentials, softmax = 1, 2, 3
    kernel = PASS_SECONDS + 2 * COLUMN_SECONDS  # It reads the maximum, and writes the sum.
    kept, again = seconds(problem), seconds(problem, largest, exponentials)
    assert kept - again == pytest.approx(kernel - 2 * LAUNCH_SECONDS)
    again = seconds(problem, largest, exponentials, softmax)
    kept = seconds(problem, largest, softmax)
    assert kept - again == pytest.approx(kernel - LAUNCH_SECONDS)


def test_rows_that_are_cut_are_reduced_in_kernels_anyway(units):
    node = problem_of(units, (2,), profile=WAITING).unit_nodes[MEAN]
    is_cut = [bool(strategy.reads[0].dims[-1]) for strategy in node.strategies]
    assert any(is_cut)
    assert [strategy.apart_seconds == 0 for strategy in node.strategies] == is_cut
