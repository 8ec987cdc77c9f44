"""Plans that offload every value that may be offloaded, and steps with many such values."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import kiwi
from kiwi.api import PlannedFunction
from kiwi.campaign.barrier_levels import with_needed_barriers
from kiwi.options import Options
from kiwi.planners.registry import planner_named
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved
from kiwi.problem.translation import copies_that_follow
from kiwi.solver import SolveResult, SolveStatus, evaluate


def perceptron(layers: int, *, is_scanned: bool) -> Callable[..., Any]:
    """Returns a training step of layers of equal width. Its arguments are the parameters [layers,
    D, D] and the inputs [B, D]."""

    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ w) @ w.T)

    def loss(ws: jax.Array, x: jax.Array) -> jax.Array:
        if is_scanned:
            x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)
        else:
            for k in range(layers):
                x = layer(x, ws[k])
        return (x.astype("float32") ** 2).mean()

    def step(ws: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(ws, x)
        return ws - gradient, value

    return step


def arrays(
    layers: int, width: int, rows: int, dtype: str = "float32"
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Returns the shapes of the arguments of `perceptron`, for inputs of `rows` rows."""
    shapes = (layers, width, width), (rows, width)
    return tuple(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)


def all_as(
    step: Callable[..., Any],
    arguments: Any,
    residency: str,
    budget_bytes: int = 2**30,
    **options: Any,
) -> kiwi.Plan:
    """Returns the plan in which each unit has `residency` if that is offered to it, and keeps its
    results otherwise. The plan has the barriers that it needs."""
    given = {"profile": "v5e", "verify": None, "mesh_shape": (1,), **options}
    function = PlannedFunction(step, Options(host_memory_budget="64GiB", **given))
    traced, planner = function.traced(*arguments), planner_named("joint")
    problem = planner.formulate(traced, budget_bytes, function.settings)
    solution = solution_with(problem, residency)
    priced = evaluate(problem.problem, solution)
    assert priced.feasible, priced.violations
    result = SolveResult(
        status=SolveStatus.FEASIBLE,
        seconds=0.0,
        objective=priced.cost,
        bound=0.0,
        solver="",
        peak_bytes=priced.peak_bytes,
    )
    plan = planner.plan_of(traced, Solved(problem, solution), result, budget_bytes)
    return with_needed_barriers(plan) or plan


def solution_with(problem: PlanningProblem, residency: str) -> tuple[int, ...]:
    """Returns the solution with each unit's first strategy, and with the first option of the
    residency `residency` where a unit offers one."""
    options = [0] * len(problem.sources)
    for node in problem.unit_nodes:
        names = [option.name for option in node.residency.options]
        options.append(names.index(residency) if residency in names else 0)
    return copies_that_follow(problem, options)
