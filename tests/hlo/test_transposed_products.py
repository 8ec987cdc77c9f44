"""Matmuls with swapped operands in place of transposed matmuls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kiwi
from kiwi.hlo.tracing import trace

# Per equation the shapes, whether the gradient's transpose swaps the operands, and that of x's.
CASES = [
    ("bd,dk->bk", (8, 4), (4, 6), 0),
    ("bsd,dhk->bshk", (2, 4, 6), (6, 3, 5), 0),
    ("bqhd,hdk->bqk", (2, 3, 4, 5), (4, 5, 6), 0),
    ("gbd,gdk->gbk", (3, 8, 4), (3, 4, 6), 0),
    ("bhqk,bkhd->bhqd", (2, 3, 4, 5), (2, 5, 3, 6), 1),  # Keys and heads change places, too.
]


@pytest.mark.parametrize(("equation", "x", "w", "transposes"), CASES)
def test_gradients_are_products_of_swapped_operands(equation, x, w, transposes):
    def step(x, w):
        loss = lambda w: jnp.sum(jnp.sin(jnp.einsum(equation, x, w)))  # noqa: E731
        return w - jax.grad(loss)(w)

    keys = jax.random.split(jax.random.key(0))
    arrays = jax.random.normal(keys[0], x), jax.random.normal(keys[1], w)
    program = trace(lambda *given: [step(*given)], arrays)
    assert [e.name for e in program.equations].count("transpose") == transposes
    values = dict(zip(program.arguments, arrays, strict=True))
    for each in program.equations:
        values.update(zip(each.outputs, each.apply(values.__getitem__), strict=True))
    np.testing.assert_allclose(values[program.results[0]], step(*arrays), rtol=1e-5, atol=1e-6)


def test_operands_keep_their_precision():
    precision = jax.lax.Precision.HIGHEST, jax.lax.Precision.DEFAULT
    product = lambda x, w: [jax.lax.dot(x, w, precision=precision).T]  # noqa: E731
    (only,) = trace(product, (jnp.ones((3, 4)), jnp.ones((4, 5)))).equations
    assert only.jaxpr_eqn.params["precision"] == precision[::-1]
    assert only.jaxpr_eqn.params["dimension_numbers"] == (((0,), (1,)), ((), ()))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: [(x @ w).T, jnp.sin(x @ w)],  # another reader
        lambda x, w: [x @ w, jnp.sin((x @ w).T)],  # a result
        lambda x, w: [jnp.sin(kiwi.hint(x @ w, keep=True).T)],  # the user's
    ],
)
def test_products_that_are_wanted_as_they_are_stay(function):
    names = [e.name for e in trace(function, (jnp.ones((3, 4)), jnp.ones((4, 5)))).equations]
    assert {"dot_general", "transpose"} <= set(names)
