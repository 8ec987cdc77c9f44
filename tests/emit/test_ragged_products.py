"""`kiwi.emit.ragged_products` against jax's own matmul by groups, and its gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from kiwi.emit.ragged_products import is_ragged_product, ragged_product
from kiwi.hlo.program import Equation
from kiwi.hlo.tracing import program_of

ROWS, WIDTH, GROUPS = 16, 6, 3


def _arrays() -> tuple[jax.Array, jax.Array, jax.Array]:
    x, w = (
        jax.random.normal(jax.random.key(k), s) for k, s in enumerate([(ROWS, WIDTH), (3, 6, 7)])
    )
    # One group is empty, and the last rows are in none.
    return x, w, jnp.array([4, 0, 9], jnp.int32)


def _squares(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    return jnp.sum(lax.ragged_dot(x, w, sizes) ** 2)


def _products(function: Any, *arrays: jax.Array) -> list[tuple[Equation, list[Any], Any]]:
    """Returns the matmuls by groups that a function computes, with operands and results."""
    program = program_of(jax.make_jaxpr(function)(*arrays))
    values: dict[int, Any] = dict(zip(program.arguments, arrays, strict=True))
    found = []
    for equation in program.equations:
        results = equation.apply(values.__getitem__)
        values.update(zip(equation.outputs, results, strict=True))
        if is_ragged_product(equation):
            found.append((equation, equation.operands(values.__getitem__), results[0]))
    return found


def test_results_are_those_of_jax() -> None:
    """Of the product, and of its gradients by rows and by groups of weights."""
    found = _products(jax.grad(_squares, (0, 1)), *_arrays())
    assert len(found) == 3
    for equation, operands, wanted in found:
        own = ragged_product(equation, operands, lambda _, repeated, groups: repeated)
        np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("number", "groups"), [(0, 1), (1, 0), (2, 1)])
def test_groups_are_a_dimension_where_nothing_is_transposed(number: int, groups: int) -> None:
    """In front of what is summed over, or a batch."""
    equation, operands, _ = _products(jax.grad(_squares, (0, 1)), *_arrays())[number]
    shapes = []

    def laid_out(_: int, repeated: jax.Array, at: int) -> jax.Array:
        shapes.append((at, repeated.shape[at]))
        return repeated

    ragged_product(equation, operands, laid_out)
    assert set(shapes) == {(groups, GROUPS)}


def test_batches_of_groups_are_left_as_they_are() -> None:
    """Where each element of a batch has sizes of its own."""
    x, w, sizes = (jnp.stack([a, a]) for a in _arrays())
    assert not _products(jax.vmap(lax.ragged_dot), x, w, sizes)
