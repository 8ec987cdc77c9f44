"""The opcodes that XLA's algebraic simplifier gives to operators before anything is fused."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from kiwi.hlo.rule import Dims, ShardingRule

MATMULS = frozenset({"dot_general", "dot"})
"""The StableHLO opcodes of matmuls."""


@dataclass(frozen=True)
class MatmulSimplification:
    """Which matmuls a compiler replaces by elementwise operators and reductions.

    - `outer_products`: whether a matmul that contracts nothing becomes a multiplication.
    - `vector_products`: whether a matmul with a vector, possibly for every element of a batch,
      becomes a multiplication and a sum.
    """

    outer_products: bool = False
    vector_products: bool = False


NO_MATMUL_SIMPLIFICATION = MatmulSimplification()
"""The simplification of a compiler for which all matmuls are library calls."""


def fused_opcode(
    opcode: str,
    rule: ShardingRule,
    operand_shapes: Sequence[Sequence[int]],
    result_shapes: Sequence[Sequence[int]],
    matmul_simplification: MatmulSimplification,
) -> str:
    """Returns the opcode by which XLA decides how an operator is fused.

    A reduction over dimensions of one element is a reshape on every backend.
    """
    if opcode == "reduce" and len(result_shapes) == 1:
        is_reshape = prod(operand_shapes[0]) == prod(result_shapes[0])
        return "reshape" if is_reshape else opcode
    if opcode not in MATMULS:
        return opcode
    left, right = (_wide_factors(rule, dims) for dims in rule.operands)
    result = _wide_factors(rule, rule.results[0])
    if left | right <= result:
        return "multiply" if matmul_simplification.outer_products else opcode
    has_vector = not (left - right) & result or not (right - left) & result
    return "reduce" if has_vector and matmul_simplification.vector_products else opcode


def _wide_factors(rule: ShardingRule, dims: Dims) -> set[int]:
    """Returns the factors of more than one element of a tensor's dimensions."""
    factors: Iterable[int] = (factor for dimension in dims for factor in dimension)
    return {factor for factor in factors if rule.factor_sizes[factor] > 1}
