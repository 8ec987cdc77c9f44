"""Ragged matmuls (`jax.lax.ragged_dot`) as the dense matmul over all groups that XLA makes of them.

Each operand with ragged rows is repeated for each group, with zeros in the rows of other groups, in
the layout in which the unit reads it. A barrier keeps XLA from sharing the repeated operand between
matmuls. A shared operand would be held from the forward pass to the backward pass, in one layout
for both.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from kiwi.hlo.program import RAGGED_PRODUCTS, Equation

LaidOut = Callable[[int, Any, int], Any]
"""Constrains the layout of a repeated operand. The arguments are the operand's number, its array,
and the dimension of the groups."""


def is_ragged_product(equation: Equation) -> bool:
    """Whether an equation is a ragged matmul whose groups have the same sizes for all batches."""
    if equation.name not in RAGGED_PRODUCTS:
        return False
    _, (batch, _), (ragged,) = _numbers(equation)
    sizes = equation.jaxpr_eqn.invars[2].aval.shape
    return len(sizes) == 1 and ragged not in batch


def ragged_product(equation: Equation, operands: Sequence[Any], laid_out: LaidOut) -> Any:
    """Returns the result of an equation for which `is_ragged_product` holds.

    - `operands`: left operand, right operand, and the sizes of the groups.
    - `laid_out`: constrains the layout of a repeated operand.
    """
    left, right, sizes = operands
    sizes, right = lax.optimization_barrier((sizes, right))
    (left_summed, right_summed), (left_batch, right_batch), (ragged,) = _numbers(equation)
    params = equation.jaxpr_eqn.params
    # If the ragged rows are summed, the groups are a batch dimension in front of all others.
    # Otherwise the groups are summed, and stand in front of the other summed dimensions as in the
    # right operand. So nothing is transposed.
    groups = 0 if ragged in left_summed else ragged + 1
    summed = [_around(left_summed, groups), [*right_summed]]
    batch = [_around(left_batch, groups), [*right_batch]]
    with jax.named_scope(equation.scope) if equation.scope else contextlib.nullcontext():
        repeated = laid_out(0, _repeated(left, sizes, ragged, groups), groups)
        if ragged in left_summed:
            rows = right_summed[left_summed.index(ragged)]
            right = laid_out(1, _repeated(right, sizes, rows, groups), groups)
            summed[1] = _around(right_summed, groups)
            batch = [[0, *batch[0]], [0, *_around(right_batch, groups)]]
        else:
            (group,) = params["ragged_dot_dimension_numbers"].rhs_group_dimensions
            summed = [[groups, *summed[0]], [group, *summed[1]]]
        return lax.dot_general(
            repeated,
            right,
            ((summed[0], summed[1]), (batch[0], batch[1])),
            precision=params["precision"],
            preferred_element_type=params["preferred_element_type"],
        )


def _numbers(equation: Equation) -> Any:
    """Returns the summed dimensions of both operands, the batch dimensions of both operands, and
    the ragged dimensions of the left operand."""
    numbers = equation.jaxpr_eqn.params["ragged_dot_dimension_numbers"]
    summed, batch = numbers.dot_dimension_numbers
    return summed, batch, numbers.lhs_ragged_dimensions


def _around(dimensions: Sequence[int], place: int) -> list[int]:
    """Returns the dimensions of an array after another dimension is inserted at `place`."""
    return [dimension + (dimension >= place) for dimension in dimensions]


def _repeated(array: Any, sizes: Any, rows: int, groups: int) -> Any:
    """Returns an array repeated for each group along a new dimension, with zeros in the rows of
    other groups.

    - `sizes`: the number of rows of each group, shape [groups].
    - `rows`: the dimension of the rows in `array`. `groups`: the place of the new dimension.
    """
    ends = jnp.cumsum(sizes, dtype=sizes.dtype)[:, None]
    places = lax.broadcasted_iota(sizes.dtype, (1, array.shape[rows]), 1)
    is_own = (ends - sizes[:, None] <= places) & (places < ends)
    shape = (*array.shape[:groups], sizes.shape[0], *array.shape[groups:])
    mask = lax.expand_dims(
        is_own if groups <= rows else is_own.T,
        [dim for dim in range(len(shape)) if dim not in (groups, *_around([rows], groups))],
    )
    return jnp.where(mask, lax.expand_dims(array, [groups]), jnp.zeros((), array.dtype))
