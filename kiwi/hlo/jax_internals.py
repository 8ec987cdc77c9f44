"""Every private name of jax and jaxlib that Kiwi uses, and nothing else.

A function with a public meaning wraps each private name, so that only this module must follow a
change in jax. `tests/hlo/test_jax_internals.py` lists the names and fails if one moves.
"""

import contextlib
import functools
import importlib
import re
import threading
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import (
    ad_checkpoint,
    compiler,
    config,
    core,
    dispatch,
    literals,
    shard_map,
    source_info_util,
)
from jax._src import callback as python_callbacks
from jax._src import mesh as mesh_contexts
from jax._src.cudnn import fused_attention_stablehlo
from jax._src.custom_partitioning_sharding_rule import (
    sdy_sharding_rule_to_mlir,
    str_to_sdy_sharding_rule,
)
from jax._src.lax import windowed_reductions
from jax.extend import core as jex
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jaxlib import xla_client
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo
from jaxlib.mlir.passmanager import PassManager

from kiwi.hlo.rule import Dims, ShardingRule

_POPULATE_RULES = "builtin.module(func.func(sdy-populate-op-sharding-rules))"

_CUDNN_VERSION = 90800
"""The least version of cuDNN that the CUDA wheels of jax 0.10 require."""

_MISSES_MESH = (
    "requires a non-empty mesh in context",
    "when you are not under a mesh context",
    "context mesh cannot be empty",
)
_UNKNOWN_AXIS = re.compile(r"Resource axis: (?P<axis>\S+) of .* is not found in mesh", re.DOTALL)
_UNBOUND_AXIS = re.compile(r"[Uu]nbound axis name: (?P<axis>\w+)")

_NO_MESH = AbstractMesh((), ())

_REPLACING: dict[tuple[Any, str], threading.RLock] = {}
"""By object and name, the lock of the thread that replaces an attribute of jax (`_replaced`)."""

# The state that holds the mesh of `jax.set_mesh` is in `config` in jax 0.10, in `mesh` in jax 0.11.
_concrete_mesh = getattr(mesh_contexts, "device_context", None) or config.device_context

_known_kernels = config.string_or_object_state(
    "kiwi_known_kernels",
    default=None,
    help="The kernels that are recognised where jax traces their functions.",
    include_in_trace_context=True,
)

_traced_apart = config.string_or_object_state(
    "kiwi_traced_apart",
    default=None,
    help="What traces were made under; jax uses none made under anything else.",
    include_in_trace_context=True,
)

Placed = Sequence[tuple[Any, int]]
"""Types of values, each with XLA's color of the memory in which the value lies. Color 0 is device
memory."""


@dataclass(frozen=True)
class MeshContext:
    """The meshes in the context of a thread.

    - `abstract`: the mesh under which code is traced. `concrete`: the mesh of `jax.set_mesh`. Each
      is empty if there is none.
    - `mesh`: the user's mesh, from `abstract`, `concrete` or `with mesh:`; None without any.
    """

    abstract: AbstractMesh
    concrete: Mesh
    mesh: Mesh | AbstractMesh | None

    @classmethod
    def current(cls) -> "MeshContext":
        """Returns the context of this thread."""
        concrete = mesh_contexts.get_concrete_mesh()
        return cls(mesh_contexts.get_abstract_mesh(), concrete, context_mesh())

    @classmethod
    def under(cls, mesh: AbstractMesh) -> "MeshContext":
        """Returns the context of code that is traced under `mesh`."""
        return cls(mesh, mesh_contexts.empty_concrete_mesh, mesh)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Inside this context manager, the thread has this context."""
        with without_mesh(), mesh_contexts.use_abstract_mesh(self.abstract):
            before = _concrete_mesh.swap_local(self.concrete)
            try:
                yield
            finally:
                _concrete_mesh.set_local(before)


def context_mesh() -> Mesh | AbstractMesh | None:
    """Returns the mesh of `jax.set_mesh`, of `jax.sharding.use_abstract_mesh` or of `with mesh:`,
    in this order; None outside of all of them."""
    abstract = mesh_contexts.get_abstract_mesh()
    candidates = (
        mesh_contexts.get_concrete_mesh(),
        abstract,
        mesh_contexts.thread_resources.env.physical_mesh,
    )
    return next((mesh for mesh in candidates if not mesh.empty), None)


def is_tracer(value: Any) -> bool:
    """Whether a value is a tracer, which has a type and no elements."""
    return isinstance(value, core.Tracer)


def is_tracing() -> bool:
    """Whether jax is tracing, for `jax.jit`, a derivative or `jax.vmap`."""
    return not core.trace_state_clean()


@contextlib.contextmanager
def without_mesh() -> Iterator[None]:
    """Inside this context manager, the context has no mesh, not even the one of `jax.set_mesh`.

    Unlike `jax.set_mesh(None)`, this context manager may be entered while jax traces.
    """
    before = _concrete_mesh.swap_local(mesh_contexts.empty_concrete_mesh)
    try:
        with mesh_contexts.use_abstract_mesh(_NO_MESH):
            yield
    finally:
        _concrete_mesh.set_local(before)


@functools.lru_cache(maxsize=1024)
def equation_context(context: Any, mesh: AbstractMesh) -> Any:
    """Returns the context of an equation (`JaxprEqn.ctx`) with another mesh."""
    if context.cur_abstract_mesh == mesh:
        return context
    with context.manager, without_mesh(), mesh_contexts.use_abstract_mesh(mesh):
        return core.JaxprEqnContext()


def equation_mesh(eqn: Any) -> AbstractMesh:
    """Returns the mesh under which an equation was traced; an empty mesh if there was none."""
    return eqn.ctx.cur_abstract_mesh


def with_mesh(aval: Any, mesh: AbstractMesh) -> Any:
    """Returns a type of a jaxpr over another mesh, with no dimension cut. Other types than arrays
    and references to arrays stay as they are."""
    if isinstance(aval, core.ShapedArray):
        spec = jax.sharding.PartitionSpec(*[None] * len(aval.shape))
        return aval.update(sharding=NamedSharding(mesh, spec))
    inner = getattr(aval, "inner_aval", None)
    if isinstance(inner, core.ShapedArray):
        return aval.update(inner_aval=with_mesh(inner, mesh))
    return aval


def literal_of_type(literal: Any, aval: Any) -> Any:
    """Returns a literal of a jaxpr with another type, also in the literal's value if that has a
    type."""
    value = literal.val
    if isinstance(value, literals.TypedNdArray):
        value = literals.TypedNdArray(np.asarray(value), aval)
    return core.Literal(value, aval)


def misses_mesh(error: Exception) -> bool:
    """Whether jax raised `error` because no mesh is in the context: a bare `PartitionSpec`, or a
    `shard_map` without a mesh, needs one."""
    return any(words in str(error) for words in _MISSES_MESH)


def misses_explicit_axes(error: Exception) -> bool:
    """Whether jax raised `error` because the axes of a `PartitionSpec` are not
    `AxisType.Explicit`."""
    return "names that are of type Auto or Manual" in str(error)


_NO_ARRAY_RESULT = re.compile(r"returned a value of type (.+?) at output component")


def no_array_result(error: Exception) -> str | None:
    """Returns the type of a result that is no array, from the error that jax raised for it; None
    for other errors."""
    match = _NO_ARRAY_RESULT.search(str(error))
    return None if match is None else match[1]


def may_be_of_pmap(error: Exception) -> bool:
    """Whether `error` is one that jax raises if `jax.pmap` maps an axis whose size is not the
    number of devices. Other code may raise an equal error."""
    return "squeeze out which has size not equal to one" in str(error)


def is_raised_in_pmap(run: Callable[[], Any]) -> bool:
    """Whether `run` raises an error in a function of `jax.pmap`."""
    with config.traceback_filtering("off"):
        try:
            run()
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            return any(Path(frame.filename).parts[-2:] == ("_src", "pmap.py") for frame in frames)
    return False


def unknown_axis(error: Exception) -> str | None:
    """Returns the axis of a `PartitionSpec` that the mesh of the context lacks, from the error that
    jax raised for it; None for other errors."""
    match = _UNKNOWN_AXIS.search(str(error))
    return None if match is None else match["axis"]


def unbound_axis(error: Exception) -> str | None:
    """Returns the axis of a collective that no `shard_map`, `vmap` or `pmap` binds, from the error
    that jax raised for it; None for other errors."""
    match = _UNBOUND_AXIS.search(str(error))
    return None if match is None else match["axis"]


def known_kernels_in_traces(kernels: Hashable) -> AbstractContextManager[None]:
    """Inside this context manager, `known_kernels()` returns `kernels` in this thread.

    jax caches traces of functions under `jax.jit`. It uses no trace that was made with other
    kernels.
    """
    return _known_kernels(kernels)


def known_kernels() -> Any:
    """Returns the kernels of the innermost `known_kernels_in_traces` in this thread; None outside
    of all."""
    return _known_kernels.value


def traced_apart(key: Hashable) -> AbstractContextManager[None]:
    """Inside this context manager, jax uses no cached trace that was made under another key. The
    keys of nested context managers together form one key."""
    return _traced_apart((_traced_apart.value, key))


def checkpoint_policies_replaced(
    policy_of: Callable[[Any, Any], Any],
) -> AbstractContextManager[None]:
    """Inside this context manager, each `jax.checkpoint` is traced with another policy.

    - `policy_of`: takes the jaxpr of a checkpointed function and the function's own policy, and
      returns the policy that replaces it.

    Traces that jax has cached keep their policies: see `traced_apart`.
    """
    primitive: Any = ad_checkpoint.remat_p
    bind = primitive.bind

    def bound(*args: Any, jaxpr: Any, policy: Any, **params: Any) -> Any:
        return bind(*args, jaxpr=jaxpr, policy=policy_of(jaxpr, policy), **params)

    return _replaced(primitive, "bind", bound)


def checkpoints_left_out() -> AbstractContextManager[None]:
    """Inside this context manager, a `jax.checkpoint` is traced as its function.

    Traces that jax has cached keep their checkpoints: see `traced_apart`.
    """

    def bound(*args: Any, jaxpr: Any, **params: Any) -> Any:
        closed = jaxpr if hasattr(jaxpr, "consts") else jex.ClosedJaxpr(jaxpr, ())
        return jex.jaxpr_as_fun(closed)(*args)

    return _replaced(ad_checkpoint.remat_p, "bind", bound)


def assumed_cudnn() -> AbstractContextManager[None]:
    """Inside this context manager, code that asks for the version of cuDNN gets a version even if
    cuDNN is not installed.

    `jax.nn.dot_product_attention(implementation="cudnn")` asks for the version while it is traced,
    also for devices that the tracing machine lacks.
    """
    # The function raises without jax's CUDA plugin, and with the plugin but without cuDNN.
    return _assumed(fused_attention_stablehlo, "check_cudnn_version", _CUDNN_VERSION)


@contextlib.contextmanager
def custom_partitioning_without_devices() -> Iterator[None]:
    """Inside this context manager, `custom_partitioning` and attention by cuDNN, which lowers to
    `custom_partitioning`, lower without devices. In manual computations they need none."""
    asking = dispatch.prim_requires_devices_during_lowering
    names = "custom_partitioning", "dot_product_attention"
    freed = {primitive for primitive in asking if primitive.name.startswith(names)}
    asking -= freed
    try:
        yield
    finally:
        asking |= freed


def assumed_gpu() -> AbstractContextManager[None]:
    """Inside this context manager, Triton's kernels lower without a GPU.

    Without a GPU, jax 0.10 assumes a model, and jax 0.11 raises an error. This context manager
    makes jax 0.11 assume the same model.
    """
    try:
        module: Any = importlib.import_module("jax._src.pallas.triton.gpu_info")
    except ImportError:
        return contextlib.nullcontext()
    of_jax_0_10 = {"gpu_version": None, "arch_name": "9.0", "compute_capability": 90}
    return _assumed(module, "get_gpu_info", module.GpuInfo(**of_jax_0_10))


def callbacks_without_results_left_out() -> AbstractContextManager[None]:
    """Inside this context manager, callbacks without results, such as `jax.debug.print`, are not
    lowered. jax can lower callbacks only for the platform of this process."""
    lowered = python_callbacks.emit_python_callback

    def emitted(
        context: Any, callback: Any, token: Any, operands: Any, given: Any, results: Any, **how: Any
    ) -> Any:
        if not results:
            return (), token, None
        return lowered(context, callback, token, operands, given, results, **how)

    return _replaced(python_callbacks, "emit_python_callback", emitted)


def shard_maps_left_out(
    is_left_out: Callable[[Any, Sequence[Any], Sequence[Any]], bool],
) -> AbstractContextManager[None]:
    """Inside this context manager, a `shard_map` for which `is_left_out` is true is traced as its
    function on whole arrays.

    - `is_left_out`: takes the function's jaxpr for one device, the specs of the operands and the
      specs of the results. It is not called for a `shard_map` with `check_vma`, nor for a function
      that cannot be traced without the mesh's axes.
    """
    primitive: Any = shard_map.shard_map_p
    bind = primitive.bind

    def bound(*args: Any, subfuns: Any, mesh: Any, in_specs: Any, **params: Any) -> Any:
        (function,) = subfuns
        if not params.get("check_vma") and _is_left_out(function, args, mesh, in_specs):
            return function(*args).unpack_aux()[0]
        return bind(*args, subfuns=subfuns, mesh=mesh, in_specs=in_specs, **params)

    def _is_left_out(function: Any, args: Any, mesh: Any, in_specs: Any) -> bool:
        out_specs: list[Any] = []

        def flat(*parts: Any) -> list[Any]:
            output, specs = function(*parts).unpack_aux()
            out_specs[:] = list(specs)
            return jax.tree.leaves(output.unflatten())

        try:
            parts = [
                jax.ShapeDtypeStruct(NamedSharding(mesh, spec).shard_shape(x.shape), x.dtype)
                for x, spec in zip(args, in_specs, strict=True)
            ]
            jaxpr = jax.make_jaxpr(flat)(*parts).jaxpr
        except (NameError, ValueError, TypeError):
            return False
        return is_left_out(jaxpr, in_specs, out_specs)

    return _replaced(primitive, "bind", bound)


def memories_stated(arguments: Placed, results: Placed) -> AbstractContextManager[None]:
    """Inside this context manager, the compile options tell XLA the memory of each argument and
    result.

    XLA:GPU reads the memories from the program only for attached devices. For other devices it
    takes all arguments to be on the device, drops the copies of arguments on the host, and lets
    kernels read host memory in place.
    """
    original = compiler.get_compile_options

    def stating(*args: Any, **kwargs: Any) -> Any:
        options, placed = original(*args, **kwargs), [_placed(*pair) for pair in results]
        whole = placed[0] if len(placed) == 1 else xla_client.Shape.tuple_shape(placed)
        options.argument_layouts = [_placed(*pair) for pair in arguments]
        options.executable_build_options.result_layout = whole
        return options

    return _replaced(compiler, "get_compile_options", stating)


def _placed(aval: Any, color: int) -> Any:
    """Returns the row-major XLA shape of a type, in the memory of a color."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        aval = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    shape = xla_client.Shape.array_shape(aval.dtype, aval.shape)
    order = ",".join(map(str, reversed(range(len(aval.shape)))))
    kind = str(shape).split("{")[0]
    return xla_client.Shape(f"{kind}{{{order}:S({color})}}") if color else shape


def _assumed(module: Any, name: str, instead: Any) -> AbstractContextManager[None]:
    """Inside this context manager, a module's function returns `instead` where it would raise a
    `RuntimeError` or `ValueError`."""
    original = getattr(module, name)

    def answer() -> Any:
        try:
            return original()
        except (RuntimeError, ValueError):
            return instead

    return _replaced(module, name, answer)


@contextlib.contextmanager
def _replaced(module: Any, name: str, by: Any) -> Iterator[None]:
    # Two threads that replaced it at once would each restore what the other one had put there.
    with _REPLACING.setdefault((module, name), threading.RLock()):
        original = getattr(module, name)
        setattr(module, name, by)
        try:
            yield
        finally:
            setattr(module, name, original)


def source_line(source_info: Any) -> str:
    """Returns the line of an equation's source info as `"file.py:12 (function)"`; empty if
    unknown."""
    summary = source_info_util.summarize(source_info)
    return "" if summary.startswith("unknown") else summary


def names_mesh_axes(eqn: Any) -> bool:
    """Whether a traced equation names axes of a mesh: a collective in a `shard_map`, or a loop
    around one."""
    # A `ppermute` names its axes in a parameter, not in an effect.
    named = any(isinstance(effect, core.NamedAxisEffect) for effect in eqn.effects)
    return named or bool(eqn.params.get("axis_name"))


def side_effects(eqn: Any) -> frozenset[Any]:
    """Returns the side effects of a traced equation, without the effect of naming mesh axes."""
    return frozenset(
        effect for effect in eqn.effects if not isinstance(effect, core.NamedAxisEffect)
    )


def stacked_results(scan: Any) -> tuple[bool, ...]:
    """Returns, for each result of a scan's equation, whether it is stacked; the others are carries.

    jax 0.10 has the number of carries among the parameters, and jax 0.11 has a tree. Both have the
    body, whose results lack the stacked dimension.
    """
    body = scan.params["jaxpr"].out_avals
    return tuple(
        variable.aval.ndim > body_aval.ndim
        for variable, body_aval in zip(scan.outvars, body, strict=True)
    )


def select_and_scatter_add(eqn: Any, source: Any, operand: Any, start: Any) -> Any:
    """Returns the gradient of max pooling, added to the scalar `start` instead of to zero.

    - `eqn`: a traced `select_and_scatter_add` with a floating-point dtype.
    - `source`, `operand`: the operands of `eqn`.
    """
    padding = eqn.params["padding"]
    is_padded = any(pad for pads in padding for pad in pads)
    shape = operand.shape
    if is_padded:  # jax pads in the same way for XLA:CPU and XLA:GPU.
        least = -jnp.inf if eqn.params["select_prim"] is lax.ge_p else jnp.inf
        pads = [(low, high, 0) for low, high in padding]
        operand = lax.pad(operand, jnp.asarray(least, operand.dtype), pads)
    summed = windowed_reductions._select_and_scatter(
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
        return summed
    starts = [low for low, _ in padding]
    return lax.slice(summed, starts, [low + size for low, size in zip(starts, shape, strict=True)])


def populate_sharding_rules(module: ir.Module) -> None:
    """Writes Shardy's `sdy.sharding_rule` on every operation of a StableHLO module."""
    with module.context:
        PassManager.parse(_POPULATE_RULES).run(module.operation)


def functions(module: ir.Module) -> dict[str, Any]:
    """Returns the functions of a module, by name."""
    operations = [op for op in module.body.operations if op.operation.name == "func.func"]
    return {ir.StringAttr(op.attributes["sym_name"]).value: op for op in operations}


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
    """Returns the shape and the MLIR element type of an SSA value; None if the value is not a
    ranked tensor."""
    if not isinstance(value.type, ir.RankedTensorType):
        return None
    return tuple(value.type.shape), str(value.type.element_type)


def sharding_rule_key(op: Any) -> Hashable:
    """Returns a key that operations of one module share if they have equal sharding rules."""
    attributes = ("sdy.sharding_rule", "dimension_numbers")
    return tuple(op.attributes.get(k) for k in attributes)


def sharding_rule(op: Any) -> ShardingRule | None:
    """Returns Shardy's rule of an operation; None if the operation has none.

    A factor is blocked if Shardy replicates, does not propagate, or permutes it. The spatial
    dimensions of a convolution are blocked as well: devices with pieces of an image would have to
    exchange the rims. Moreover, XLA's partitioner computes a wrong gradient of a kernel if the
    image is cut along one mesh axis and replicated along another.
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
        blocked.update(factor for tensor, dims in spatial for dim in dims for factor in tensor[dim])
    sizes, summed = tuple(rule.factor_sizes), frozenset(rule.reduction_factors)
    return ShardingRule(sizes, operands, results, summed, frozenset(blocked))


def partitioned_function_rule(eqn: Any) -> ShardingRule | None:
    """Returns Shardy's rule of a traced `custom_partitioning`; None if the user gave none.

    A factor is blocked if Shardy replicates or permutes it. If the user gave a function that
    returns the rule, the function gets the mesh of the context, as it does outside of `jax.jit`.
    """
    rule = eqn.params["sharding_rule"]
    if rule is None:
        return None
    with mlir.make_ir_context(), ir.Location.unknown():
        types = [
            [_tensor_type(variable.aval) for variable in side] for side in (eqn.invars, eqn.outvars)
        ]
        if callable(rule):
            rule = rule(
                *eqn.params["static_args"], mesh_contexts.thread_resources.env.physical_mesh, *types
            )
        text, sizes = rule if isinstance(rule, tuple | list) else (rule, {})
        parsed: Any = str_to_sdy_sharding_rule(text, **sizes) if isinstance(text, str) else text
        shardy_rule = sdy.OpShardingRuleAttr(sdy_sharding_rule_to_mlir(parsed, *types))
        held = frozenset((*shardy_rule.need_replication_factors, *shardy_rule.permutation_factors))
        sides = _mappings(shardy_rule.operand_mappings), _mappings(shardy_rule.result_mappings)
        return ShardingRule(
            tuple(shardy_rule.factor_sizes), *sides, frozenset(shardy_rule.reduction_factors), held
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
