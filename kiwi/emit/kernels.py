"""Kernels in the emitted program: each device calls the function on its shards.

XLA cannot partition them. A kernel without a sharding rule runs on whole operands on each device.
"""

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp

from kiwi.emit.context import Context
from kiwi.emit.host_buffers import row_major
from kiwi.hlo.kernels import Factors, Kernel
from kiwi.hlo.program import Equation
from kiwi.hlo.units import Unit
from kiwi.mesh import TensorSharding


def on_each_device(
    context: Context, unit: Unit, equation: Equation, local: Mapping[int, Any]
) -> list[Any]:
    """The results of a kernel that are read, from operands in the unit's layouts."""
    reads_rows = equation.name in context.execution.facts.row_major_primitives
    kernel = equation.kernel or equation.batches
    if kernel is None or context.execution.mesh.size == 1:
        whole = jax.sharding.PartitionSpec()
        function = lambda *reads: equation.apply(dict(zip(equation.reads, reads)).__getitem__)  # noqa: B905, E731
        function = _of_rows(function) if reads_rows else function
        return context.on_each_device(function, whole, whole)(*(local[v] for v in equation.reads))
    axes = dict(_axes_of_factors(context, unit, equation, kernel))
    specs: list[Any] = [_specs(context, axes, t) for t in (kernel.operands, kernel.results)]
    function = kernel.function
    if kernel.partition is not None:
        function, *specs = kernel.partition(context.jax_mesh, *specs)
    if kernel.shifted is not None:
        names = context.execution.mesh.axis_names
        cut_by = tuple(names[axis] for axis in axes.get(kernel.shifted, ()))
        function = functools.partial(function, axes=cut_by)
    function = _of_rows(function) if reads_rows else function
    found = context.on_each_device(function, *specs)(*equation.operands(local.__getitem__))
    return equation.kept(found)


def _of_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with row-major operands and results."""
    return lambda *shards: jax.tree.map(row_major, function(*map(row_major, shards)))


def stand_in(equation: Equation, read: Callable[[int], Any]) -> list[Any]:
    """A replacement for a kernel on any platform, through which XLA propagates shardings as the
    kernel's rule says: sums of the operands along the factors that a result lacks.

    A `shard_map` stays a `shard_map` with as little work, between the layouts that it names.
    """
    if equation.name == "shard_map":
        return _manual_stand_in(equation, read)
    types = [v.aval for v in equation.jaxpr_eqn.outvars]
    kernel, operands = equation.kernel, equation.operands(read)
    if kernel is None:
        return equation.kept([jnp.zeros(t.shape, t.dtype) for t in types])
    tensors = [*zip(kernel.operands, operands, strict=True)]
    sizes = kernel.sizes([x.shape for x in operands], [t.shape for t in types])
    found = []
    for result, own in zip(kernel.results, types, strict=True):
        parts = (_along(t, x, result, sizes).astype(own.dtype) for t, x in tensors)
        found.append(functools.reduce(operator.add, parts).reshape(own.shape))
    return equation.kept(found)


def _manual_stand_in(equation: Equation, read: Callable[[int], Any]) -> list[Any]:
    """The results of a `shard_map`, each of which depends on all operands."""
    params = equation.jaxpr_eqn.params
    results = [v.aval for v in params["jaxpr"].outvars]

    def body(*shards: Any) -> list[Any]:
        arrays = [x for x in shards if not jnp.issubdtype(x.dtype, jax.dtypes.extended)]
        total = sum((jnp.sum(x).real.astype("float32") for x in arrays), jnp.float32(0))
        return [jnp.broadcast_to(total, t.shape).astype(t.dtype) for t in results]

    manual = jax.shard_map(
        body,
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=list(params["out_specs"]),
        axis_names=params.get("newly_manual_axes") or params["manual_axes"],
        check_vma=False,
    )
    return equation.kept(manual(*equation.operands(read)))


def _along(tensor: Factors, array: Any, result: Factors, sizes: Mapping[str, int]) -> Any:
    """An array with one dimension for each factor of a result."""
    own, wanted = [*chain(*tensor)], [*chain(*result)]
    kept = [f for f in own if f in wanted]
    cut = array.reshape([sizes[f] for f in own])
    summed = cut.sum([k for k, f in enumerate(own) if f not in wanted], dtype=array.dtype)
    ordered = summed.transpose([kept.index(f) for f in wanted if f in kept])
    absent = [k for k, f in enumerate(wanted) if f not in kept]
    return jnp.broadcast_to(jnp.expand_dims(ordered, absent), [sizes[f] for f in wanted])


def _specs(
    context: Context, axes: Mapping[str, tuple[int, ...]], tensors: tuple[Factors, ...]
) -> tuple[Any, ...]:
    """The `PartitionSpec` of each tensor, from the mesh axes that shard its factors."""
    layouts = (tuple(tuple(chain(*(axes.get(f, ()) for f in dim))) for dim in t) for t in tensors)
    return tuple(context.execution.mesh.partition_spec(TensorSharding(dims)) for dims in layouts)


def _axes_of_factors(
    context: Context, unit: Unit, equation: Equation, kernel: Kernel
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The mesh axes that shard each factor, from the layouts of the unit's results.

    All factors that may be sharded are among them, and in each dimension only the first factor is
    sharded.
    """
    for output, tensor in zip(unit.outputs, equation.kept(kernel.results), strict=True):
        layout = context.execution.layouts[output]
        for factors, axes in zip(tensor, layout.dims, strict=True):
            yield from ((f, axes) for f in factors[:1] if f in kernel.sharded)
