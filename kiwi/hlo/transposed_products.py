"""XLA's simplification of the transpose of a product to the product of the swapped operands.

JAX computes the gradient of `w` in `x @ w` as the transpose of `dot_general(g, x)`. XLA's algebraic
simplifier swaps the operands and drops the transpose, unless a sharding constraint or a barrier is
on the product. Without the swap, the gradient's dimensions would have another order in memory than
the parameter's. XLA:TPU would then copy parameter and moments to that order and back in every step.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kiwi.hlo.program import Equation, Program

_PRODUCT = "dot_general"


def swapped_product(program: Program, equation: Equation) -> Equation | None:
    """Returns the product of swapped operands that replaces the transpose of a product; None for
    equations that are not replaced.

    The transpose must be the only reader of the product, and must exchange the free dimensions of
    the two operands. Nothing reads the old product any more.
    """
    if equation.name != "transpose" or not equation.reads:
        return None
    product = program.read_only_by(equation, equation.reads[0])
    if product is None or product.name != _PRODUCT or not _swaps(product, equation):
        return None
    return replace(
        equation,
        jaxpr_eqn=_swapped(product.jaxpr_eqn, equation.jaxpr_eqn),
        scope=product.scope,
        inputs=product.inputs[::-1],
    )


def _swaps(product: Equation, transpose: Equation) -> bool:
    """Whether the transpose of a product is the product of the swapped operands."""
    params = product.jaxpr_eqn.params
    if not isinstance(params["precision"], tuple | None) or params.get("out_sharding") is not None:
        return False
    return tuple(transpose.jaxpr_eqn.params["permutation"]) == tuple(_swapping(product.jaxpr_eqn))


def _swapping(product: Any) -> Iterator[int]:
    """Yields the dimensions of a product in the order after the swap: batch, then the second
    operand's free dimensions, then the first's."""
    (contracted, _), (batch, _) = product.params["dimension_numbers"]
    rank = len(product.outvars[0].aval.shape)
    second_start = len(product.invars[0].aval.shape) - len(contracted)
    yield from range(len(batch))
    yield from range(second_start, rank)
    yield from range(len(batch), second_start)


def _swapped(product: Any, transpose: Any) -> Any:
    (contracted, batch), precision = (
        product.params["dimension_numbers"],
        product.params["precision"],
    )
    numbers = (contracted[::-1], batch[::-1])
    swapped_params = {"dimension_numbers": numbers, "precision": precision and precision[::-1]}
    return product.replace(
        invars=product.invars[::-1],
        outvars=transpose.outvars,
        params={**product.params, **swapped_params},
    )
