"""Floating-point work of operators, unsharded."""

from collections.abc import Sequence
from math import prod
from typing import Any

from jax.extend import core as jex

from kiwi.hlo.rule import ShardingRule, factor_product

_FREE = frozenset(
    {
        "broadcast_in_dim",
        "bitcast_convert",
        "concatenate",
        "constant",
        "convert",
        "copy",
        "dynamic_slice",
        "dynamic_update_slice",
        "gather",
        "iota",
        "optimization_barrier",
        "pad",
        "reshape",
        "reverse",
        "slice",
        "transpose",
    }
)
"""Operators that move data and compute nothing."""


def operator_flops(
    opcode: str,
    rule: ShardingRule,
    operand_shapes: Sequence[Sequence[int]],
    result_shapes: Sequence[Sequence[int]],
) -> float:
    """Operations of one StableHLO operator; a multiply-add counts as two.

    Elementwise functions count one per element, whatever they are: on accelerators they are
    bound by memory, which is priced apart.
    """
    if opcode in _FREE:
        return 0.0
    if opcode in ("dot_general", "dot"):
        return 2.0 * factor_product(rule)
    if opcode == "convolution":
        return _convolution_flops(rule, operand_shapes[1], result_shapes[0])
    largest = max((prod(s) for s in (*operand_shapes, *result_shapes)), default=0)
    return float(largest)


def _convolution_flops(
    rule: ShardingRule, kernel_shape: Sequence[int], result_shape: Sequence[int]
) -> float:
    """2 x result elements x kernel elements per output feature.

    The output features are the dimension of the kernel that the result has as well. (With feature
    groups the input shares a factor of it.)
    """
    result = {f for factors in rule.results[0] for f in factors}
    features = prod(
        size
        for size, factors in zip(kernel_shape, rule.operands[1], strict=True)
        if factors and result.issuperset(factors)
    )
    return 2.0 * prod(result_shape) * prod(kernel_shape) / max(1, features)


def region_flops(eqn: Any) -> float:
    """Work of an equation that runs regions; a `while` is taken to run once."""
    if eqn.primitive.name == "scan":
        return eqn.params["length"] * _jaxpr_flops(eqn.params["jaxpr"].jaxpr)
    regions = [sub for sub in jex.jaxprs_in_params(eqn.params)]
    return max((_jaxpr_flops(getattr(r, "jaxpr", r)) for r in regions), default=0.0)


def _jaxpr_flops(jaxpr: Any) -> float:
    return sum(_eqn_flops(eqn) for eqn in jaxpr.eqns)


def _eqn_flops(eqn: Any) -> float:
    if any(True for _ in jex.jaxprs_in_params(eqn.params)):
        return region_flops(eqn)
    out = float(sum(prod(v.aval.shape) for v in eqn.outvars if hasattr(v.aval, "shape")))
    if eqn.primitive.name != "dot_general":
        return out
    (contracting, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return 2.0 * out * prod(shape[d] for d in contracting)
