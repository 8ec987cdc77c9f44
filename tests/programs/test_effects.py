"""Callbacks run once per step and in the written order, whatever is recomputed or moved."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import kiwi
from kiwi.emit.execution import build_execution
from kiwi.emit.interpreter import emit
from kiwi.errors import CompileCheckError
from kiwi.problem.solved import Solved
from tests.emit.test_emission import random_solution
from tests.helpers.planning import array, flat, problem_of, units_of

WIDTH = 16


def with_io(seen: list[Any], h: jax.Array) -> jax.Array:
    io_callback(seen.append, None, jax.lax.stop_gradient(h.mean()), ordered=False)
    return h


def with_ordered_io(seen: list[Any], h: jax.Array) -> jax.Array:
    io_callback(seen.append, None, jax.lax.stop_gradient(h.mean()), ordered=True)
    return h


def with_debug(seen: list[Any], h: jax.Array) -> jax.Array:
    jax.debug.callback(seen.append, h.mean())
    return h


def with_pure(seen: list[Any], h: jax.Array) -> jax.Array:
    def sine(x: Any) -> np.ndarray:
        seen.append(x)
        return np.sin(x)

    return h * jax.pure_callback(sine, jax.typeof(h), jax.lax.stop_gradient(h))


def with_pure_in_a_loop(seen: list[Any], h: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 1, lambda _, x: with_pure(seen, x), h)


CALLBACKS = {
    "io": with_io,
    "ordered io": with_ordered_io,
    "debug": with_debug,
    "pure": with_pure,
    "pure in a loop": with_pure_in_a_loop,
}


def step_of(name: str, seen: list[Any]) -> Any:
    def loss(w, x):
        h = CALLBACKS[name](seen, jnp.tanh(jnp.tanh(x @ w) @ w))
        return jnp.mean(jnp.tanh(jnp.tanh(h @ w) @ w) ** 2)

    return jax.value_and_grad(loss)


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_are_not_recomputed(name):
    seen: list[Any] = []
    shapes = array(WIDTH, WIDTH), array(8, WIDTH)
    units = units_of(step_of(name, seen), *shapes)
    planning = problem_of(units, (1, 1))
    solution = random_solution(planning, np.random.default_rng(0), remat=1.0)
    execution = build_execution(Solved(planning, solution))
    around = {units.graph.opcode_of(units.units[u].root) for u in execution.recomputed}
    assert "tanh" in around
    rng = np.random.default_rng(1)
    arguments = [rng.standard_normal(s.shape, np.float32) for s in shapes]
    results = jax.jit(emit(execution))(*arguments)
    jax.effects_barrier()
    assert len(seen) == 1
    for got, wanted in zip(results, flat(step_of(name, []))(*arguments), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_effects_keep_their_order():
    """An update runs as soon as it can; one that speaks up waits for those that spoke before."""
    seen: list[str] = []

    def say(word: str, x: jax.Array) -> None:
        io_callback(lambda _: seen.append(word), None, x, ordered=True)

    def step(w1, w2, x):
        def loss(w1, w2):
            return jnp.mean(jnp.tanh(jnp.tanh(x @ w1) @ w2) ** 2)

        value, (g1, g2) = jax.value_and_grad(loss, (0, 1))(w1, w2)
        say("first layer", jnp.sum(g1))
        say("loss", value)
        say("second layer", jnp.sum(g2))
        return w1 - g1, w2 - g2

    square = array(WIDTH, WIDTH)
    units = units_of(step, square, square, array(8, WIDTH), donated=(0, 1))
    planning = problem_of(units, (1, 1))
    execution = build_execution(Solved(planning, [0] * len(planning.problem.nodes)))
    jax.jit(emit(execution))(*[np.ones(s, np.float32) for s in ((16, 16), (16, 16), (8, 16))])
    jax.effects_barrier()
    assert seen == ["first layer", "loss", "second layer"]


@pytest.mark.parametrize(("profile", "platform"), [("h100-sxm", "cuda"), ("v5e", "tpu")])
def test_steps_that_print_are_planned_for_and_sent_to_other_platforms(profile, platform):
    def loss(ws, x):
        def layer(x, w):
            h = jnp.tanh(x @ w)
            jax.debug.print("mean {}", h.mean())
            return h, None

        found, _ = jax.lax.scan(jax.checkpoint(layer), x, ws)
        jax.debug.callback(lambda _: None, found.max())
        return jnp.mean(found**2)

    args = array(2, WIDTH, WIDTH), array(16, WIDTH)
    options = {"mesh_shape": (8,), "verify": None, "effort": "quick"}
    plan = kiwi.plan(jax.value_and_grad(loss), *args, profile=profile, **options)
    assert plan.step.exported(platform)


def test_callbacks_with_results_are_sent_nowhere():
    plan = kiwi.plan(
        step_of("pure", []), array(WIDTH, WIDTH), array(8, WIDTH), mesh_shape=(8,), verify=None
    )
    with pytest.raises(CompileCheckError, match="sent to a process") as refused:
        plan.step.exported("cuda")
    assert 'verify="cpu"' in str(refused.value)
