"""Functions with their own partitioning (`jax.experimental.custom_partitioning`) as kernels.

Shardy's rule says how such a function may be sharded, and the function's `partition` returns the
computation of each device. A plan calls `partition` for the chosen layouts, and calls the returned
function in a `shard_map`. XLA would do the same when it compiles the step, but that needs devices
which the planning machine may lack.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
from jax.extend import core as jex
from jax.sharding import NamedSharding

from kiwi.hlo import jax_internals
from kiwi.hlo.kernels import KERNEL, Factors, Kernel, shardable
from kiwi.hlo.rule import Dims, ShardingRule

CUSTOM_PARTITIONING = "custom_partitioning"


def kernel_of(eqn: Any) -> Kernel | None:
    """Returns the kernel that a traced equation calls; None if the equation calls no function with
    a sharding rule."""
    if eqn.primitive.name == KERNEL:
        return eqn.params["kernel"]
    if eqn.primitive.name != CUSTOM_PARTITIONING:
        return None
    rule = jax_internals.partitioned_function_rule(eqn)
    return None if rule is None else _kernel(eqn, rule)


def _kernel(eqn: Any, rule: ShardingRule) -> Kernel:
    """Returns the kernel of a traced `custom_partitioning` with a rule.

    Only factors that all results have may be sharded: how `partition` treats other factors is not
    known.
    """
    call = eqn.params["call"]
    shapes = [[variable.aval.shape for variable in side] for side in (eqn.invars, eqn.outvars)]
    fitting = _fitting(rule, shapes)
    operands, results = (
        tuple(_factors(dims, fitting, f"{side} {k}") for k, dims in enumerate(tensors))
        for side, tensors in (("operand", rule.operands), ("result", rule.results))
    )
    held = {str(factor) for factor in rule.blocked | rule.reduction}
    return Kernel(
        call.jaxpr.debug_info.func_name,
        lambda *operands: tuple(jex.jaxpr_as_fun(call)(*operands)),
        operands,
        results,
        shardable(operands, results) - held,
        partition=lambda *layouts: _partitioned(eqn, *layouts),
        known_sizes={str(factor): rule.factor_sizes[factor] for factor in fitting},
    )


def _fitting(rule: ShardingRule, shapes: Sequence[Sequence[Sequence[int]]]) -> frozenset[int]:
    """Returns the factors whose sizes fit every dimension in which they occur.

    Shardy takes the least size if the dimensions of a factor differ.
    """
    pairs = [
        *zip(rule.operands, shapes[0], strict=True),
        *zip(rule.results, shapes[1], strict=True),
    ]
    dims = [pair for tensor, shape in pairs for pair in zip(tensor, shape, strict=True)]
    sizes = rule.factor_sizes
    others = {
        factor
        for factors, size in dims
        if prod(sizes[factor] for factor in factors) != size
        for factor in factors
    }
    return frozenset(range(len(sizes))) - others


def _factors(dims: Dims, fitting: frozenset[int], name: str) -> Factors:
    """Returns the names of a tensor's factors. A dimension whose factors do not fit gets a factor
    of its own."""
    return tuple(
        tuple(map(str, factors)) if fitting.issuperset(factors) else (f"{name} {dim}",)
        for dim, factors in enumerate(dims)
    )


def _partitioned(eqn: Any, mesh: Any, in_specs: Any, out_specs: Any) -> tuple[Any, Any, Any]:
    """Returns the function of each device for these layouts, and the specs of operands and results
    that it expects."""
    params = eqn.params
    trees = params["in_tree"], params["out_tree"]
    types = (
        tree.unflatten(
            jax.ShapeDtypeStruct(
                variable.aval.shape, variable.aval.dtype, sharding=NamedSharding(mesh, spec)
            )
            for variable, spec in zip(variables, specs, strict=True)
        )
        for tree, variables, specs in zip(
            trees, (eqn.invars, eqn.outvars), (in_specs, out_specs), strict=True
        )
    )
    _, function, results, operands = params["partition"](*params["static_args"], mesh, *types)
    in_wanted, out_wanted = (
        tuple(sharding.spec for sharding in tree.flatten_up_to(shardings))
        for tree, shardings in zip(trees, (operands, results), strict=True)
    )

    def flat(*shards: Any) -> tuple[Any, ...]:
        return tuple(trees[1].flatten_up_to(function(*trees[0].unflatten(shards))))

    return flat, in_wanted, out_wanted
