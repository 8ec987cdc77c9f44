"""Floating-point operations of whole, unsharded operators."""

from collections.abc import Sequence
from math import prod

from kiwi.hlo.rule import ShardingRule

FREE_OPCODES = frozenset(
    {
        "bitcast_convert",
        "bitcast_convert_type",
        "broadcast_in_dim",
        "concatenate",
        "constant",
        "convert",
        "convert_element_type",
        "copy",
        "dynamic_slice",
        "dynamic_update_slice",
        "expand_dims",
        "gather",
        "iota",
        "name",
        "optimization_barrier",
        "pad",
        "pvary",
        "reshape",
        "rev",
        "reverse",
        "slice",
        "squeeze",
        "transpose",
    }
)
"""Opcodes of StableHLO and primitives of JAX that move data and compute nothing."""


def operator_flops(
    opcode: str,
    rule: ShardingRule,
    operand_shapes: Sequence[Sequence[int]],
    result_shapes: Sequence[Sequence[int]],
) -> float:
    """Returns the floating-point operations of one StableHLO operator.

    A multiply-add counts as two operations. Any elementwise function counts as one operation per
    element: on accelerators it is bound by memory traffic, which is priced separately.
    """
    if opcode in FREE_OPCODES:
        return 0.0
    if opcode in ("dot_general", "dot"):
        return 2.0 * prod(rule.factor_sizes)
    if opcode == "convolution":
        return _convolution_flops(rule, operand_shapes[1], result_shapes[0])
    largest = max((prod(shape) for shape in (*operand_shapes, *result_shapes)), default=0)
    return float(largest)


def _convolution_flops(
    rule: ShardingRule, kernel_shape: Sequence[int], result_shape: Sequence[int]
) -> float:
    """Returns 2 x result elements x kernel elements per output feature.

    The output features are the kernel's dimension whose factors the result has as well. (With
    feature groups the input shares one of these factors.)
    """
    result = {factor for factors in rule.results[0] for factor in factors}
    features = prod(
        size
        for size, factors in zip(kernel_shape, rule.operands[1], strict=True)
        if factors and result.issuperset(factors)
    )
    return 2.0 * prod(result_shape) * prod(kernel_shape) / max(1, features)
