"""Unrolled layers get equal plans, if that costs almost nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.campaign import shares
from kiwi.planners.product import JOINT
from kiwi.problem.equal_layers import equal_nodes
from kiwi.solver.tied import tied
from tests.helpers.planning import WAITING

LAYERS, WIDTH, HIDDEN, ROWS = 7, 256, 1024, 4096
OPTIONS = {"mesh_shape": (2, 4), "verify": None, "donate_argnums": 0, "profile": WAITING}


def step(weights, x):
    """One training step of residual layers in a Python loop."""

    def loss(weights):
        y = x
        for first, second in weights:
            normed = (y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1)
            y = y + jax.nn.gelu(normed @ first) @ second
        return jnp.square(y).mean()

    value, grads = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads), value


def arguments(layers=LAYERS):
    shapes = (WIDTH, HIDDEN), (HIDDEN, WIDTH)
    weights = [tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes) for _ in range(layers)]
    return weights, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)


def planned(budget, **options):
    return kiwi.plan(step, *arguments(), memory_budget=budget, **OPTIONS, **options)


@pytest.fixture(scope="module")
def free():
    return planned("1TiB")


def layouts_of_weights(plan):
    sharded = plan.execution.layouts
    program = plan.execution.units.graph.program
    found = [sharded[argument] for argument in program.arguments[: 2 * LAYERS]]
    return list(zip(found[::2], found[1::2], strict=True))


def test_the_weights_of_all_layers_lie_alike(free):
    first, *others = layouts_of_weights(free)
    assert all(other == first for other in others)
    assert any("Equal layers decide alike" in note.text for note in free.notes)


@pytest.fixture(scope="module")
def budget(free):
    return int(0.3 * free.peak_bytes)


def taken_by_layers(plan):
    """Returns, for each class of equal nodes, the set of options that its members take."""
    solution = plan.solve_result.solution
    return [
        {
            int(np.flatnonzero(own == solution[member])[0])
            for member, own in zip(each.members, each.options, strict=True)
        }
        for each in equal_nodes(plan.origin.planning)
    ]


def test_under_a_limit_the_same_operators_of_all_layers_run_again(budget, monkeypatch):
    monkeypatch.setattr(shares, "DIFFERENT_LAYERS_GAIN", 0.5)
    plan = planned(budget)
    assert plan.estimate.peak_bytes <= budget
    assert plan.execution.recomputed
    assert all(len(taken) == 1 for taken in taken_by_layers(plan))
    # The bound is that of the whole problem, of which layers that differ are solutions, too.
    assert plan.solve_result.bound <= planned(budget, equal_layers=False).solve_result.objective


def test_layers_differ_where_being_alike_costs_more(budget, monkeypatch):
    plan = planned(budget)
    assert any(len(taken) > 1 for taken in taken_by_layers(plan))
    assert plan.estimate.peak_bytes <= budget
    monkeypatch.setattr(shares, "DIFFERENT_LAYERS_GAIN", 0.5)
    alike = planned(budget)
    assert plan.solve_result.objective < (1 - 0.005) * alike.solve_result.objective


def test_the_tied_problem_does_not_grow_with_the_layers():
    counts = []
    for layers in (6, 12):
        traced = kiwi.jit(step, memory_budget="64MiB", **OPTIONS).traced(*arguments(layers))
        settings = kiwi.jit(step, memory_budget="64MiB", **OPTIONS).settings
        problem = JOINT.formulate(traced, settings.memory_budget_bytes, settings)
        small = tied(problem.problem, equal_nodes(problem))
        counts.append((len(small.problem.nodes), len(small.problem.edges)))
    assert counts[0] == counts[1]
