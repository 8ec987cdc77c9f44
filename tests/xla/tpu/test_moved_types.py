"""The type in which XLA:TPU moves values that are computed in another type."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import kiwi
from tests.helpers.planning import array

pytest.importorskip("libtpu")

WIDTH, LAYERS = 1024, 3


def gradients(weights: list[Any], x: Any) -> Any:
    """Returns gradients of float32 weights, computed in bfloat16."""

    def loss(weights: list[Any]) -> Any:
        h = x
        for w in weights:
            h = jnp.tanh(h @ w.astype(jnp.bfloat16))
        return jnp.mean(h.astype(jnp.float32) ** 2)

    return jax.grad(loss)(weights)


def test_weights_are_gathered_and_gradients_scattered_as_matmuls_take_and_yield_them() -> None:
    """Fully sharded: half of the bytes of float32, planned as compiled."""
    sharded = [P("x")] * LAYERS
    plan = kiwi.plan(
        gradients,
        [array(WIDTH, WIDTH)] * LAYERS,
        array(8 * WIDTH, WIDTH, dtype="bfloat16"),
        mesh_shape=(8,),
        profile="v5e",
        in_shardings=(sharded, P("x")),
        out_shardings=sharded,
    )
    assert plan.compiled is not None
    for kind in ("all-gather", "reduce-scatter"):
        planned, compiled = plan.estimate.collectives[kind], plan.compiled.collectives[kind]
        assert planned.bytes == compiled.bytes == LAYERS * WIDTH * WIDTH * 2


def test_numbers_are_those_of_the_step() -> None:
    key = jax.random.key(0)
    weights = [0.1 * jax.random.normal(k, (64, 64)) for k in jax.random.split(key, LAYERS)]
    x = jax.random.normal(key, (64, 64), "bfloat16")
    sharded = [P("x")] * LAYERS
    planned = kiwi.jit(
        gradients,
        mesh_shape=(8,),
        profile="v5e",
        verify=None,
        in_shardings=(sharded, P("x")),
        out_shardings=sharded,
    )
    for found, wanted in zip(planned(weights, x), jax.jit(gradients)(weights, x), strict=True):
        assert jnp.allclose(found, wanted, rtol=2e-2, atol=1e-4)
