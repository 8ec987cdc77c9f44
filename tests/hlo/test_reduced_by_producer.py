"""Which reductions XLA:TPU computes in the kernel of what they reduce."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import kiwi
from kiwi.hlo.reduced_by_producer import is_reduced_by_producer
from tests.helpers.planning import array, units_of

ROWS, WIDTH = 4096, 1024
ARRAYS = array(ROWS, WIDTH), array(WIDTH, WIDTH)


def total(x: jax.Array, w: jax.Array) -> Any:
    y = x @ w
    return y, y.sum(0)


def mapped_total(x: jax.Array, w: jax.Array) -> Any:
    y = jnp.maximum(x @ w, 0.0)
    return y, y.sum(0)


def deviations(x: jax.Array, w: jax.Array) -> Any:
    y = x @ w
    return ((y - y.mean(-1, keepdims=True)) ** 2).sum(-1)


CASES = [(total, [True]), (mapped_total, [True]), (deviations, [True, False])]


@pytest.mark.parametrize(("function", "expected"), CASES)
def test_what_depends_on_another_reduction_is_not_reduced_with_it(
    function: Callable[..., Any], expected: list[bool]
):
    units = units_of(function, *ARRAYS)
    roots = units.graph.program.equations
    found = [u for u in units.units if roots[u.root].name == "reduce_sum"]
    assert [is_reduced_by_producer(units, unit) for unit in found] == expected


@pytest.mark.skipif(find_spec("libtpu") is None, reason="the extra aot-tpu is not installed")
@pytest.mark.parametrize(("function", "expected"), CASES)
def test_xla_reduces_it_in_the_same_kernel(function: Callable[..., Any], expected: list[bool]):
    """Only then the compiled step takes as long as the plan says: another pass takes 24 us."""
    plan = kiwi.plan(function, *ARRAYS, mesh_shape=(1,), verify="tpu", profile="v5e")
    assert plan.compiled is not None and plan.compiled.time is not None
    assert plan.estimate.step_seconds == pytest.approx(plan.compiled.time.step_seconds, abs=12e-6)
