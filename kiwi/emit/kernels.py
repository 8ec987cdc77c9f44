"""Kernels in the emitted program: each device calls the kernel's function on its shards.

XLA cannot partition such kernels. A kernel without a sharding rule runs on whole operands on each
device.
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
    """Returns the results of a kernel that are read, without the unread ones.

    - `local`: the operands by value index, in the layouts that the unit reads.
    """
    reads_rows = equation.name in context.execution.facts.row_major_primitives
    kernel = equation.kernel or equation.batches
    if kernel is None or context.execution.mesh.size == 1:
        whole = jax.sharding.PartitionSpec()
        function = lambda *reads: equation.apply(dict(zip(equation.reads, reads)).__getitem__)  # noqa: B905, E731
        function = _of_rows(function) if reads_rows else function
        return context.on_each_device(function, whole, whole)(
            *(local[value] for value in equation.reads)
        )
    axes = dict(_axes_of_factors(context, unit, equation, kernel))
    specs: list[Any] = [
        _specs(context, axes, tensors) for tensors in (kernel.operands, kernel.results)
    ]
    function = kernel.function
    if kernel.partition is not None:
        function, *specs = kernel.partition(context.jax_mesh, *specs)
    if kernel.shifted is not None:
        names = context.execution.mesh.axis_names
        cut_by = tuple(names[axis] for axis in axes.get(kernel.shifted, ()))
        function = functools.partial(function, axes=cut_by)
    function = _of_rows(function) if reads_rows else function
    results = context.on_each_device(function, *specs)(*equation.operands(local.__getitem__))
    return equation.kept(results)


def _of_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with operands and results constrained to be row-major in memory."""
    return lambda *shards: jax.tree.map(row_major, function(*map(row_major, shards)))


def stand_in(equation: Equation, read: Callable[[int], Any]) -> list[Any]:
    """Returns the results of a stand-in for a kernel that runs on any platform.

    Each result is the sum of all operands, each summed along the factors that the result lacks. XLA
    so propagates shardings as the kernel's rule says. A `shard_map` is replaced by a `shard_map`
    between the same layouts that does as little work.

    - `read`: returns the array of an operand, by value index.
    """
    if equation.name == "shard_map":
        return _manual_stand_in(equation, read)
    types = [result.aval for result in equation.jaxpr_eqn.outvars]
    kernel, operands = equation.kernel, equation.operands(read)
    if kernel is None:
        return equation.kept([jnp.zeros(info.shape, info.dtype) for info in types])
    tensors = [*zip(kernel.operands, operands, strict=True)]
    sizes = kernel.sizes([x.shape for x in operands], [info.shape for info in types])
    results = []
    for result, type_ in zip(kernel.results, types, strict=True):
        parts = (_along(tensor, x, result, sizes).astype(type_.dtype) for tensor, x in tensors)
        results.append(functools.reduce(operator.add, parts).reshape(type_.shape))
    return equation.kept(results)


def _manual_stand_in(equation: Equation, read: Callable[[int], Any]) -> list[Any]:
    """Returns the results of a stand-in for a `shard_map`. Each depends on all operands."""
    params = equation.jaxpr_eqn.params
    results = [result.aval for result in params["jaxpr"].outvars]

    def body(*shards: Any) -> list[Any]:
        arrays = [x for x in shards if not jnp.issubdtype(x.dtype, jax.dtypes.extended)]
        total = sum((jnp.sum(x).real.astype("float32") for x in arrays), jnp.float32(0))
        return [jnp.broadcast_to(total, info.shape).astype(info.dtype) for info in results]

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
    """Returns an operand as an array with one dimension for each factor of a result: summed along
    factors that the result lacks, and broadcast along factors that the operand lacks.

    - `tensor`, `result`: the factors of the operand and of the result. `sizes`: of each factor.
    """
    present, wanted = [*chain(*tensor)], [*chain(*result)]
    kept = [factor for factor in present if factor in wanted]
    factored = array.reshape([sizes[factor] for factor in present])
    summed = factored.sum(
        [k for k, factor in enumerate(present) if factor not in wanted], dtype=array.dtype
    )
    ordered = summed.transpose([kept.index(factor) for factor in wanted if factor in kept])
    absent = [k for k, factor in enumerate(wanted) if factor not in kept]
    return jnp.broadcast_to(jnp.expand_dims(ordered, absent), [sizes[factor] for factor in wanted])


def _specs(
    context: Context, axes: Mapping[str, tuple[int, ...]], tensors: tuple[Factors, ...]
) -> tuple[Any, ...]:
    """Returns the `PartitionSpec` of each tensor. `axes`: the mesh axes that shard each factor."""
    layouts = (
        tuple(tuple(chain(*(axes.get(factor, ()) for factor in dim))) for dim in tensor)
        for tensor in tensors
    )
    return tuple(context.execution.mesh.partition_spec(TensorSharding(dims)) for dims in layouts)


def _axes_of_factors(
    context: Context, unit: Unit, equation: Equation, kernel: Kernel
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the mesh axes that shard each factor, from the layouts of the unit's results.

    Every factor that may be sharded is a factor of some result. In each dimension of a result, only
    the first factor is sharded.
    """
    for output, tensor in zip(unit.outputs, equation.kept(kernel.results), strict=True):
        layout = context.execution.layouts[output]
        for factors, axes in zip(tensor, layout.dims, strict=True):
            yield from ((factor, axes) for factor in factors[:1] if factor in kernel.sharded)
