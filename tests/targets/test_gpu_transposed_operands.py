"""The operands that XLA:GPU transposes before its matmuls read them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from kiwi.targets.rules.gpu.gpu_transposed_operands import transposed_operands
from tests.helpers.planning import array, units_of

LENGTH, HEADS, WIDTH = 512, 8, 64
SEQUENCES = array(4, LENGTH, HEADS * WIDTH)
WEIGHTS = array(HEADS * WIDTH, HEADS, WIDTH)


def scores(x: jax.Array, wq: jax.Array, wk: jax.Array) -> jax.Array:
    q, k = jnp.einsum("bsd,dhk->bshk", x, wq), jnp.einsum("btd,dhk->bthk", x, wk)
    return jnp.einsum("bshk,bthk->bhst", q, k)


def scaled_scores(x: jax.Array, wq: jax.Array, wk: jax.Array) -> jax.Array:
    """An elementwise operator after each matmul writes queries and keys in the wanted order."""
    q, k = jnp.einsum("bsd,dhk->bshk", x, wq), jnp.einsum("btd,dhk->bthk", x, wk)
    return jnp.einsum("bshk,bthk->bhst", jnp.sin(q), jnp.sin(k))


def whole_scores(x: jax.Array, y: jax.Array) -> jax.Array:
    """The arguments keep their order of dimensions, batch first."""
    return jnp.einsum("bsd,btd->bst", x, y)


def transposed(function: Callable[..., Any], *arguments: Any, shards: int = 1) -> int:
    """Returns the number of transposed operands. `shards`: the number of pieces that each factor is
    cut into."""
    units = units_of(function, *arguments)
    found = 0
    for unit in units.units:
        pieces = dict.fromkeys(range(len(unit.rule.factor_sizes)), shards)
        operands = transposed_operands(units, unit)
        found += sum(operand.is_transposed(pieces) for _, operand in operands)
    return found


@pytest.mark.parametrize(
    ("function", "arguments", "expected"),
    [
        (scores, (SEQUENCES, WEIGHTS, WEIGHTS), 2),
        (scaled_scores, (SEQUENCES, WEIGHTS, WEIGHTS), 0),
        (whole_scores, (SEQUENCES, SEQUENCES), 0),
        (lambda x, w: x @ w, (array(64, 64), array(64, 64)), 0),
    ],
)
def test_heads_between_rows_and_columns_are_transposed(function, arguments, expected):
    assert transposed(function, *arguments) == expected


def test_one_sequence_and_one_head_of_each_device_lie_in_any_order():
    assert (
        transposed(scores, array(8, LENGTH, 512), array(512, 8, WIDTH), array(512, 8, WIDTH)) == 2
    )
    assert not transposed(
        scores, array(8, LENGTH, 512), array(512, 8, WIDTH), array(512, 8, WIDTH), shards=8
    )
