"""Kernels in the emitted program: each device calls the function on its shards.

XLA cannot partition them; one without a sharding rule runs on whole operands on each device.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import jax

from kiwi.emit.context import Context
from kiwi.hlo.kernels import Factors
from kiwi.hlo.program import Equation
from kiwi.hlo.units import Unit
from kiwi.mesh import TensorSharding


def on_each_device(
    context: Context, unit: Unit, equation: Equation, local: Mapping[int, Any]
) -> list[Any]:
    """The results of a kernel that something reads, from operands in the unit's layouts."""
    if context.execution.mesh.size == 1:
        return equation.apply(local.__getitem__)
    whole = jax.sharding.PartitionSpec()
    if not equation.is_kernel:
        function = lambda *reads: equation.apply(dict(zip(equation.reads, reads)).__getitem__)  # noqa: B905, E731
        return _mapped(context, function, whole, whole)(*(local[v] for v in equation.reads))
    kernel = equation.jaxpr_eqn.params["kernel"]
    axes = dict(_axes_of_factors(context, unit, equation))
    specs = (_specs(context, axes, tensors) for tensors in (kernel.operands, kernel.results))
    found = _mapped(context, kernel.function, *specs)(*equation.operands(local.__getitem__))
    return equation.kept(found)


def _mapped(
    context: Context, function: Callable[..., Any], in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    mesh = context.jax_mesh
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def _specs(
    context: Context, axes: Mapping[str, tuple[int, ...]], tensors: tuple[Factors, ...]
) -> tuple[Any, ...]:
    """The `PartitionSpec` of each tensor, from the mesh axes that shard its factors."""
    layouts = (tuple(tuple(chain(*(axes.get(f, ()) for f in dim))) for dim in t) for t in tensors)
    return tuple(context.execution.mesh.partition_spec(TensorSharding(dims)) for dims in layouts)


def _axes_of_factors(
    context: Context, unit: Unit, equation: Equation
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The mesh axes that shard each factor, from the layouts of the unit's results.

    All factors that may be sharded are there, and in a dimension only the first one is sharded.
    """
    kernel = equation.jaxpr_eqn.params["kernel"]
    for output, tensor in zip(unit.outputs, equation.kept(kernel.results), strict=True):
        layout = context.execution.layouts[output]
        for factors, axes in zip(tensor, layout.dims, strict=True):
            yield from ((f, axes) for f in factors[:1] if f in kernel.sharded)
