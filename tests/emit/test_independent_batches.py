"""Operators that are independent along batch dimensions are sharded along them, and compute the
same as in JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import kiwi
from kiwi.hlo.independent_batches import batch_flops
from tests.helpers.planning import array

BATCH, N = 16, 6


def positive(x: Any) -> Any:
    size = x.shape[-1]
    return jnp.einsum("bti,btj->bij", x, x) + size * jnp.eye(size)


OPERATORS = {
    "cholesky": lambda x: jnp.linalg.cholesky(positive(x)),
    "solve": lambda x: jnp.linalg.solve(positive(x), x[:, :, :2]),
    "qr": jnp.linalg.qr,
    "eigenvalues": lambda x: jnp.linalg.eigh(positive(x))[0],
    "singular values": lambda x: jnp.linalg.svd(x, compute_uv=False),
    "largest": lambda x: jax.lax.top_k(x, 2),
    "spectrum": lambda x: jnp.abs(jnp.fft.fft(x)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_each_device_computes_its_part_of_the_batch(name: str):
    x = jax.random.normal(jax.random.key(0), (BATCH, N, N))
    options = {"mesh_shape": (8,), "profile": "cpu", "in_shardings": P("x"), "effort": "quick"}
    planned = kiwi.jit(OPERATORS[name], **options)
    plan = planned.plan(x)
    execution = plan.execution
    program = execution.units.graph.program
    batched = [e for e in program.equations if e.batches is not None]
    assert batched
    assert all(execution.layouts[o].dims[0] == (0,) for e in batched for o in e.outputs)
    assert not plan.compiled.collective_uses
    expected = jax.jit(OPERATORS[name])(x)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), planned(x), expected
    )


def test_gradients_of_a_solve_stay_on_their_devices():
    def step(w, x):
        loss = lambda w: jnp.mean(jnp.linalg.solve(positive(x) + w, x[:, :, :1]) ** 2)  # noqa: E731
        value, gradient = jax.value_and_grad(loss)(w)
        return w - 0.1 * gradient, value

    # So large that the solves take longer than the sum of the gradient over the devices.
    args = jnp.float32(1.0), jax.random.normal(jax.random.key(0), (64, 96, 96))
    planned = kiwi.jit(step, mesh_shape=(8,), profile="cpu", in_shardings=(P(), P("x")))
    execution = planned.plan(*args).execution
    equations = execution.units.graph.program.equations
    solved = [o for e in equations if e.name in ("lu", "triangular_solve") for o in e.outputs]
    assert len(solved) == 7
    assert all(execution.layouts[value].dims[0] == (0,) for value in solved)
    for mine, expected in zip(planned(*args), jax.jit(step)(*args), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=2e-4)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (jax.lax.linalg.cholesky, N**3 / 3),
        (jax.lax.linalg.lu, 2 * N**3 / 3),
        (lambda x: jax.lax.linalg.triangular_solve(x, x, left_side=True), N**3),
    ],
)
def test_work_is_the_algorithm_s(function: Any, expected: float):
    eqns = jax.make_jaxpr(function)(array(BATCH, N, N)).jaxpr.eqns
    (flops,) = (
        batch_flops(e) for e in eqns if e.primitive.name in {"cholesky", "lu", "triangular_solve"}
    )
    assert flops == pytest.approx(BATCH * expected)
