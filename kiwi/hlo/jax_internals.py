"""Every private name of jax and jaxlib that Kiwi uses, and nothing else.

Each one is wrapped in a function with a public meaning, so that a change in jax is mended
here. `tests/hlo/test_jax_internals.py` lists them and fails when one moves.
"""

import contextlib
import importlib
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax._src import compiler, core, dispatch, source_info_util
from jax._src.cudnn import fused_attention_stablehlo
from jax._src.custom_partitioning_sharding_rule import (
    sdy_sharding_rule_to_mlir,
    str_to_sdy_sharding_rule,
)
from jax._src.lax import windowed_reductions
from jax._src.mesh import thread_resources
from jax.interpreters import mlir
from jaxlib import xla_client
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo
from jaxlib.mlir.passmanager import PassManager

from kiwi.hlo.rule import Dims, ShardingRule

_POPULATE_RULES = "builtin.module(func.func(sdy-populate-op-sharding-rules))"

_CUDNN_VERSION = 90800
"""The least that the CUDA wheels of jax 0.10 ask for."""

Placed = Sequence[tuple[Any, int]]
"""Types, each with XLA's color of the memory in which it lies; 0: the device's."""


def assumed_cudnn() -> AbstractContextManager[None]:
    """Inside, code that asks for the version of cuDNN gets one where there is none.

    `jax.nn.dot_product_attention(implementation="cudnn")` asks while it is traced, also for devices
    that the tracing machine lacks.
    """
    # It raises without jax's CUDA plugin, or with it and without cuDNN.
    return _assumed(fused_attention_stablehlo, "check_cudnn_version", _CUDNN_VERSION)


@contextlib.contextmanager
def custom_partitioning_without_devices() -> Iterator[None]:
    """Inside, custom partitioning lowers without devices, as it can in manual computations.

    With it what lowers to it: attention by cuDNN.
    """
    asking = dispatch.prim_requires_devices_during_lowering
    names = "custom_partitioning", "dot_product_attention"
    freed = {p for p in asking if p.name.startswith(names)}
    asking -= freed
    try:
        yield
    finally:
        asking |= freed


def assumed_gpu() -> AbstractContextManager[None]:
    """Inside, Triton's kernels lower without a GPU: jax 0.10 assumes one then, jax 0.11 asks."""
    try:
        module: Any = importlib.import_module("jax._src.pallas.triton.gpu_info")
    except ImportError:
        return contextlib.nullcontext()
    of_jax_0_10 = {"gpu_version": None, "arch_name": "9.0", "compute_capability": 90}
    return _assumed(module, "get_gpu_info", module.GpuInfo(**of_jax_0_10))


def memories_stated(arguments: Placed, results: Placed) -> AbstractContextManager[None]:
    """Inside, XLA is told what of a program lies in the host's memory. XLA:GPU reads it from the
    program for attached devices only: for others it takes all arguments to be on the device, drops
    their copies, and has kernels read the host's memory in place."""
    asked = compiler.get_compile_options

    def stating(*args: Any, **kwargs: Any) -> Any:
        options, placed = asked(*args, **kwargs), [_placed(*each) for each in results]
        whole = placed[0] if len(placed) == 1 else xla_client.Shape.tuple_shape(placed)
        options.argument_layouts = [_placed(*each) for each in arguments]
        options.executable_build_options.result_layout = whole
        return options

    return _replaced(compiler, "get_compile_options", stating)


def _placed(aval: Any, color: int) -> Any:
    """A type for XLA, row-major."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        aval = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    shape = xla_client.Shape.array_shape(aval.dtype, aval.shape)
    order = ",".join(map(str, reversed(range(len(aval.shape)))))
    kind = str(shape).split("{")[0]
    return xla_client.Shape(f"{kind}{{{order}:S({color})}}") if color else shape


def _assumed(module: Any, name: str, instead: Any) -> AbstractContextManager[None]:
    """Inside, a module's function returns `instead` where it raises."""
    asked = getattr(module, name)

    def answer() -> Any:
        try:
            return asked()
        except (RuntimeError, ValueError):
            return instead

    return _replaced(module, name, answer)


@contextlib.contextmanager
def _replaced(module: Any, name: str, by: Any) -> Iterator[None]:
    asked = getattr(module, name)
    setattr(module, name, by)
    try:
        yield
    finally:
        setattr(module, name, asked)


def source_line(source_info: Any) -> str:
    """`"file.py:12 (function)"` of an equation's source info; empty if unknown."""
    summary = source_info_util.summarize(source_info)
    return "" if summary.startswith("unknown") else summary


def names_mesh_axes(eqn: Any) -> bool:
    """Whether a traced equation names axes of a mesh, as the collectives in a `shard_map` do and
    the loops around them."""
    return any(isinstance(effect, core.NamedAxisEffect) for effect in eqn.effects)


def side_effects(eqn: Any) -> frozenset[Any]:
    """The effects of a traced equation. That it names axes of a mesh is none."""
    return frozenset(e for e in eqn.effects if not isinstance(e, core.NamedAxisEffect))


def stacked_results(scan: Any) -> tuple[bool, ...]:
    """For each result of a scan's equation whether it is stacked, not carried.

    jax 0.10 has the number of carried ones among the parameters, jax 0.11 a tree; both have the
    body, whose results lack the dimension along which they are stacked.
    """
    body = scan.params["jaxpr"].out_avals
    return tuple(v.aval.ndim > b.ndim for v, b in zip(scan.outvars, body, strict=True))


def select_and_scatter_add(eqn: Any, source: Any, operand: Any, start: Any) -> Any:
    """The gradient of max pooling, added to `start`, a scalar, instead of to zeros.

    `eqn` is of primitive `select_and_scatter_add` and of a floating dtype.
    """
    padding = eqn.params["padding"]
    is_padded = any(pad for pads in padding for pad in pads)
    shape = operand.shape
    if is_padded:  # As jax does for XLA:CPU and XLA:GPU.
        least = -jnp.inf if eqn.params["select_prim"] is lax.ge_p else jnp.inf
        pads = [(low, high, 0) for low, high in padding]
        operand = lax.pad(operand, jnp.asarray(least, operand.dtype), pads)
    found = windowed_reductions._select_and_scatter(
        operand,
        eqn.params["select_prim"].bind,
        eqn.params["window_dimensions"],
        eqn.params["window_strides"],
        ((0, 0),) * len(shape),
        source,
        start,
        lax.add,
    )
    if not is_padded:
        return found
    first = [low for low, _ in padding]
    return lax.slice(found, first, [low + size for low, size in zip(first, shape, strict=True)])


def populate_sharding_rules(module: ir.Module) -> None:
    """Writes Shardy's `sdy.sharding_rule` on every operation of a StableHLO module."""
    with module.context:
        PassManager.parse(_POPULATE_RULES).run(module.operation)


def functions(module: ir.Module) -> dict[str, Any]:
    """The functions of a module by name."""
    found = [op for op in module.body.operations if op.operation.name == "func.func"]
    return {ir.StringAttr(op.attributes["sym_name"]).value: op for op in found}


def block_operations(function: Any) -> Iterator[Any]:
    """The operations of a function's only block, in order."""
    return iter(function.regions[0].blocks[0].operations)


def block_arguments(function: Any) -> list[Any]:
    """The arguments of a function's only block."""
    return list(function.regions[0].blocks[0].arguments)


def callee(op: Any) -> str:
    """The name of the function that a `func.call` calls."""
    return ir.FlatSymbolRefAttr(op.attributes["callee"]).value


def tensor_shape_and_dtype(value: Any) -> tuple[tuple[int, ...], str] | None:
    """Shape and MLIR element type of an SSA value; None if it is not a ranked tensor."""
    if not isinstance(value.type, ir.RankedTensorType):
        return None
    return tuple(value.type.shape), str(value.type.element_type)


def sharding_rule_key(op: Any) -> Hashable:
    """Equal for operations of one module with equal rules."""
    attributes = ("sdy.sharding_rule", "dimension_numbers")
    return tuple(op.attributes.get(k) for k in attributes)


def sharding_rule(op: Any) -> ShardingRule | None:
    """Shardy's rule of an operation; None if it has none.

    Blocked is what Shardy replicates, does not propagate, or permutes, and an image's space: to cut
    it means to exchange the rims of the pieces. XLA's partitioner moreover miscounts the gradient
    to a kernel where the image is cut along one mesh axis and copied along another.
    """
    if "sdy.sharding_rule" not in op.attributes:
        return None
    rule = sdy.OpShardingRuleAttr(op.attributes["sdy.sharding_rule"])
    operands, results = _mappings(rule.operand_mappings), _mappings(rule.result_mappings)
    blocked = {
        *rule.need_replication_factors,
        *rule.blocked_propagation_factors,
        *rule.permutation_factors,
    }
    if op.operation.name == "stablehlo.convolution":
        numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        spatial = (
            (operands[0], numbers.input_spatial_dimensions),
            (operands[1], numbers.kernel_spatial_dimensions),
            (results[0], numbers.output_spatial_dimensions),
        )
        blocked.update(f for tensor, dims in spatial for dim in dims for f in tensor[dim])
    sizes, summed = tuple(rule.factor_sizes), frozenset(rule.reduction_factors)
    return ShardingRule(sizes, operands, results, summed, frozenset(blocked))


def partitioned_function_rule(eqn: Any) -> ShardingRule | None:
    """Shardy's rule of a traced `custom_partitioning`; None if it was given none.

    Blocked is what Shardy replicates or permutes. A function that returns the rule gets the mesh
    of the context, as it does outside of `jax.jit`.
    """
    rule = eqn.params["sharding_rule"]
    if rule is None:
        return None
    with mlir.make_ir_context(), ir.Location.unknown():
        types = [[_tensor_type(v.aval) for v in side] for side in (eqn.invars, eqn.outvars)]
        if callable(rule):
            rule = rule(*eqn.params["static_args"], thread_resources.env.physical_mesh, *types)
        text, sizes = rule if isinstance(rule, tuple | list) else (rule, {})
        read: Any = str_to_sdy_sharding_rule(text, **sizes) if isinstance(text, str) else text
        found = sdy.OpShardingRuleAttr(sdy_sharding_rule_to_mlir(read, *types))
        held = frozenset((*found.need_replication_factors, *found.permutation_factors))
        sides = _mappings(found.operand_mappings), _mappings(found.result_mappings)
        return ShardingRule(
            tuple(found.factor_sizes), *sides, frozenset(found.reduction_factors), held
        )


def _tensor_type(aval: Any) -> ir.Type:
    return ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(aval.dtype))


def _mappings(tensors: Any) -> tuple[Dims, ...]:
    return tuple(
        tuple(
            tuple(sdy.DimMappingAttr(dim).factor_indices)
            for dim in sdy.TensorMappingAttr(tensor).dim_mappings
        )
        for tensor in tensors
    )
