"""Recomputed operators use the same keys: the dropout masks of both passes are equal."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.emit.execution import Execution, build_execution
from kiwi.emit.interpreter import emit
from kiwi.problem.solved import Solved
from tests.emit.test_emission import random_solution
from tests.helpers.planning import WAITING, array, flat, problem_of, units_of

WIDTH, BATCH, LAYERS = 16, 8, 3
KEYS = {"typed": jax.random.key, "raw": jax.random.PRNGKey}


def dropout(key: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x / 0.5, 0)


def loss(w: jax.Array, x: jax.Array, key: jax.Array) -> jax.Array:
    for layer_key in jax.random.split(key, LAYERS):
        x = x + dropout(layer_key, jnp.tanh(dropout(layer_key, x) @ w) @ w)
    return jnp.mean(x**2)


STEP = jax.value_and_grad(loss)


def arguments(kind: str) -> list[Any]:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4
    x = rng.standard_normal((BATCH, WIDTH)).astype(np.float32)
    return [w, x, KEYS[kind](5)]


def recomputing(kind: str, mesh_shape: tuple[int, ...]) -> Execution:
    """Returns an execution that computes everything twice that may run twice, including random
    bits."""
    shapes = [array(*np.shape(a), dtype=a.dtype) for a in arguments(kind)]
    planning = problem_of(units_of(STEP, *shapes), mesh_shape)
    solution = random_solution(planning, np.random.default_rng(0), remat=1.0)
    return build_execution(Solved(planning, solution))


def random_bits(execution: Execution) -> list[int]:
    """Returns the recomputed units that draw random numbers."""
    program = execution.units.graph.program
    return [
        u
        for u in execution.recomputed
        if any(
            program.equations[e].name == "random_bits" for e in execution.units.units[u].equations
        )
    ]


def largest_difference(function: Callable[..., Any], kind: str) -> float:
    """Returns the largest difference of the gradient, relative to its largest element."""
    expected = flat(jax.jit(STEP))(*arguments(kind))[1]
    found = jax.jit(function)(*arguments(kind))[1]
    return float(jnp.abs(found - expected).max() / jnp.abs(expected).max())


@pytest.mark.parametrize(("kind", "mesh_shape"), [("typed", (2, 4)), ("raw", (1, 1))])
def test_recomputed_dropout_has_the_same_mask(kind, mesh_shape):
    execution = recomputing(kind, mesh_shape)
    assert random_bits(execution)
    assert largest_difference(emit(execution), kind) < 1e-5


def test_another_key_for_the_recomputation_would_be_noticed(monkeypatch):
    """What the test above would say if second computations drew numbers of their own."""
    from kiwi.hlo.program import Equation

    execution = recomputing("typed", (1, 1))
    apply, drawn = Equation.apply, set()

    def with_another_key(self, read):
        key = self.inputs[0] if self.name == "random_bits" else None
        if key is None or self.index not in drawn:
            drawn.add(self.index)
            return apply(self, read)
        return apply(self, lambda v: jax.random.fold_in(read(v), 1) if v == key else read(v))

    monkeypatch.setattr(Equation, "apply", with_another_key)
    assert largest_difference(emit(execution), "typed") > 1e-2


@pytest.mark.parametrize("kind", ["typed"])
def test_plans_with_little_memory_recompute_dropout(kind):
    planned = kiwi.jit(STEP, mesh_shape=(2,), verify=None, memory_budget="1GB", profile=WAITING)
    free = planned.plan(*arguments(kind))
    tight = planned.with_options(memory_budget=int(0.6 * free.peak_bytes))
    plan = tight.plan(*arguments(kind))
    assert plan.execution.recomputed
    for found, wanted in zip(
        jax.tree.leaves(tight(*arguments(kind))), flat(STEP)(*arguments(kind)), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_keys_on_devices_are_folded_with_planned_numbers():
    """The types of arguments on devices name those; jax refuses operands over different meshes."""

    def draw(keys: jax.Array, x: jax.Array) -> jax.Array:
        folded = jax.vmap(jax.random.fold_in)(keys, (x @ x).astype(jnp.uint32)[0])
        return jax.vmap(jax.random.normal)(folded)

    keys, x = jax.random.split(jax.random.key(1), 8), jnp.eye(8)
    planned = kiwi.jit(draw, mesh_shape=(8,), verify=None)
    placed = planned.plan(keys, x).place(keys, x)
    np.testing.assert_array_equal(planned(*placed), draw(keys, x))
