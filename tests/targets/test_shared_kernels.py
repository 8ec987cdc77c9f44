"""The units that XLA computes in the kernel of an earlier unit."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import kiwi
from examples import mlp
from kiwi.hlo.graph import Phase
from kiwi.targets.shared_kernels import shared_kernels
from tests.helpers.planning import array, units_of

ROWS, WIDTH = 4096, 1024
MATMUL = array(ROWS, WIDTH), array(WIDTH, WIDTH)


def total(x: jax.Array, w: jax.Array) -> Any:
    y = x @ w
    return y, y.sum(0)


def mapped_total(x: jax.Array, w: jax.Array) -> Any:
    y = jnp.maximum(x @ w, 0.0)
    return y, y.sum(0)


def deviations(x: jax.Array, w: jax.Array) -> Any:
    y = x @ w
    return ((y - y.mean(-1, keepdims=True)) ** 2).sum(-1)


def weighted_total(x: jax.Array, w: jax.Array, weights: jax.Array) -> Any:
    y = x @ w
    return y, (y * weights).sum(0)


def moments(p: jax.Array, m: jax.Array, v: jax.Array, g: jax.Array) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g**2
    return p - m / (jnp.sqrt(v) + 1e-8), m, v


CASES = [
    (total, MATMUL, 1),
    (mapped_total, MATMUL, 1),
    (deviations, MATMUL, 1),  # of two: the squares depend on the mean
    (weighted_total, (*MATMUL, array(ROWS, WIDTH)), 1),
    (moments, (array(WIDTH, WIDTH),) * 4, 2),
]


@pytest.mark.parametrize(("function", "arguments", "shared"), CASES)
def test_what_depends_on_a_reduction_goes_over_the_tensor_again(
    function: Callable[..., Any], arguments: tuple[Any, ...], shared: int
):
    units = units_of(function, *arguments)
    found = shared_kernels(units, updates_alone=False)
    assert len(found) == shared
    for index, kernel in found.items():
        assert kernel.first < index
        assert kernel.values and kernel.values <= set(units.units[index].reads)


def test_a_matmul_reads_no_more_for_the_map_behind_it():
    """The matmul's result is at hand, the weights of the sum are not."""
    units = units_of(weighted_total, *MATMUL, array(ROWS, WIDTH))
    ((index, kernel),) = shared_kernels(units, updates_alone=False).items()
    assert kernel.first == 0 and kernel.values == frozenset(units.units[0].outputs)
    assert set(units.units[index].reads) - kernel.values


def test_updates_alone_are_shared_on_gpus():
    """Of each of eight parameters the second moment and the parameter itself, but for the first,
    behind whose moments the steps are counted."""
    config = mlp.SIZES["tiny"]
    state, batch = mlp.abstract_state(config), mlp.abstract_batch(config)
    units = kiwi.jit(mlp.make_train_step(config)).traced(state, batch).units
    found = shared_kernels(units, updates_alone=True)
    assert len(found) == 2 * 8 - 1
    assert {units.units[index].phase for index in found} == {Phase.UPDATE}


@pytest.mark.skipif(find_spec("libtpu") is None, reason="the extra aot-tpu is not installed")
@pytest.mark.parametrize(("function", "arguments", "shared"), CASES)
def test_xla_computes_it_in_the_same_kernel(
    function: Callable[..., Any], arguments: tuple[Any, ...], shared: int
):
    """Only then the compiled step takes as long as the plan says, but for launches: going over a
    tensor once more takes 24 us, and 6 of moments."""
    plan = kiwi.plan(function, *arguments, mesh_shape=(1,), verify="tpu", profile="v5e")
    assert plan.compiled is not None and plan.compiled.time is not None
    assert plan.estimate.step_seconds == pytest.approx(plan.compiled.time.step_seconds, abs=5e-6)
