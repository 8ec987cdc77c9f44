"""Loops under plans: faults that random programs once found."""

import jax
import jax.numpy as jnp
import numpy as np

import kiwi
from benchmarks.programs.check import check
from benchmarks.programs.recipes import Recipe
from benchmarks.programs.steps import Step


def agree(function, *args, mesh_shape=(2,), **options):
    planned = kiwi.jit(function, mesh_shape=mesh_shape, verify=None, **options)
    expected = jax.tree.leaves(jax.jit(function)(*args))
    for got, wanted in zip(jax.tree.leaves(planned(*args)), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_carries_that_start_alike_stay_apart():
    """As sums of gradients do: they start from zeros of one shape."""

    def sums(x):
        zeros = jnp.zeros(x.shape[1])
        step = lambda carry, row: ((carry[0] + row, carry[1] - 2 * row), None)  # noqa: E731
        return jax.lax.scan(step, (zeros, zeros), x)[0]

    agree(sums, jnp.arange(24.0).reshape(4, 6))


def test_loops_on_little_data_compile():
    """XLA:CPU makes one kernel of them, in which it could not emit the plan's barriers."""

    def loss(w, x):
        layer = lambda x, w: (jnp.tanh(jnp.tanh(x @ w) @ w), None)  # noqa: E731
        return jnp.mean(jax.lax.scan(layer, x, w)[0] ** 2)

    agree(jax.value_and_grad(loss), jnp.full((3, 8, 8), 0.1), jnp.ones((4, 8)))


def nested(between):
    """Returns loops in a loop. A stacked result of the inner loop goes through `between` into the
    outer carry."""

    def inner(total, row):
        total = jnp.tanh(total + row)
        return total, total

    def outer(total, row):
        _, seen = jax.lax.scan(inner, jnp.zeros(()), row)
        return total + between(seen, row), jnp.sum(seen)

    def loss(w, x):
        last, sums = jax.lax.scan(outer, jnp.zeros(x.shape[1]), x * w)
        return jnp.mean(last**2) + jnp.mean(sums**2)

    return jax.value_and_grad(loss)


def test_what_an_inner_loop_stacks_is_kept_for_the_backward_pass():
    function = nested(lambda seen, row: seen * seen * row)
    agree(function, jnp.float32(0.7), jnp.arange(24.0).reshape(4, 6) / 24)


def test_elements_of_a_value_of_the_outer_body_are_there_in_the_backward_pass():
    """The second inner loop reads elements of what the first one led to."""
    sine, sums = Step("elementwise"), Step("binary", 2)
    body = Step("accumulate", 382, (sine,)), Step("accumulate", 382, (sums,))
    assert check(Recipe((Step("accumulate", 382, body),), shape=(8, 8))).kind == "equal"
