"""Planned training steps compute the same as plain `jax.jit`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import kiwi
from examples import convnet, encoder, gpt, mlp

STEPS = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and the share of its unplanned peak that the plan gets on 8 devices."""

    module: Any
    config: Any
    part: float = 0.7


SMALL = {"layers": 1, "width": 32, "sequence": 16}
CASES = {
    "mlp": Case(mlp, mlp.SIZES["tiny"]),
    "gpt": Case(gpt, dataclasses.replace(gpt.SIZES["tiny"], layers=1, width=32, sequence=16)),
    "encoder": Case(
        encoder, dataclasses.replace(encoder.SIZES["tiny"], layers=1, width=32, sequence=16)
    ),
    "convnet": Case(convnet, convnet.SIZES["tiny"]),
}


@functools.cache
def plain_run(name: str) -> list[tuple[Any, float]]:
    """Returns state and loss after each step of plain `jax.jit`."""
    case = CASES[name]
    return train(case, jax.jit(case.module.make_train_step(case.config)))


def train(case: Case, step: Callable[..., Any]) -> list[tuple[Any, float]]:
    state, batch = case.module.make_state(case.config, 1), case.module.make_batch(case.config, 2)
    history = []
    for _ in range(STEPS):
        state, metrics = step(state, batch)
        # To the host at once: a donated state does not survive the next step.
        history.append((jax.tree.map(np.asarray, state), float(metrics["loss"])))
    return history


@functools.cache
def unplanned_peak(name: str) -> int:
    """Returns the estimated peak on one device, in bytes."""
    case = CASES[name]
    args = case.module.abstract_state(case.config), case.module.abstract_batch(case.config)
    step = case.module.make_train_step(case.config)
    return kiwi.plan(step, *args, mesh_shape=(1,), verify=None).estimate.peak_bytes


def assert_same_training(planned, plain):
    """Checks that the losses of all steps agree, and the state after the first one.

    float32 sums in another order differ by about 1e-6 of their size. Adam divides a gradient by its
    own magnitude. Where the gradient is only rounding noise (as for attention's key biases), the
    parameter may therefore move by up to the learning rate in either direction. Parameters are
    compared only where the first moment shows a gradient. SGD's moment is the gradient itself.
    """
    np.testing.assert_allclose([x for _, x in planned], [x for _, x in plain], rtol=1e-4)
    (state, _), (expected, _) = planned[0], plain[0]
    moments = [s.mu if hasattr(s, "mu") else s.trace for s in first_states(state)]
    wanted = [s.mu if hasattr(s, "mu") else s.trace for s in first_states(expected)]
    for moment, want in zip(jax.tree.leaves(moments), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(moment, want, rtol=2e-3, atol=1e-6)
    leaves = zip(
        jax.tree.leaves(state.params),
        jax.tree.leaves(expected.params),
        jax.tree.leaves(wanted),
        strict=True,
    )
    for got, want, moment in leaves:
        clear = np.abs(moment) > 1e-5
        np.testing.assert_allclose(got[clear], want[clear], rtol=1e-4, atol=1e-5)


def first_states(state):
    return [s for s in jax.tree.leaves(state.opt_state, is_leaf=is_moment) if is_moment(s)]


def is_moment(node: Any) -> bool:
    return hasattr(node, "mu") or hasattr(node, "trace")


@pytest.mark.parametrize(
    ("name", "mesh_shape", "donate"),
    [
        *[(name, (2, 4), ()) for name in CASES],
        *[("gpt", (1, 1), ()), ("mlp", (8, 1), ()), ("convnet", (1, 8), ())],
        ("mlp", (1, 1), 0),  # all are donated below
    ],
)
def test_planned_training_equals_plain_training(name: str, mesh_shape, donate):
    """With the batch cut over all devices; models this small are better not sharded at all."""
    case = CASES[name]
    step = kiwi.jit(
        case.module.make_train_step(case.config),
        mesh_shape=mesh_shape,
        in_shardings=(None, PartitionSpec(("x", "y"))),
        donate_argnums=donate,
        verify=None,
        effort="quick",
    )
    assert_same_training(train(case, step), plain_run(name))


@pytest.mark.parametrize("name", CASES)
def test_planned_training_under_a_budget_equals_plain_training(name: str):
    """Under a budget that forces the state or activations to be sharded."""
    case = CASES[name]
    step = kiwi.jit(
        case.module.make_train_step(case.config),
        mesh_shape=(2, 4),
        memory_budget=int(case.part * unplanned_peak(name)),
        donate_argnums=0,
        time_limit_seconds=5,
        verify=None,
    )
    assert_same_training(train(case, step), plain_run(name))
