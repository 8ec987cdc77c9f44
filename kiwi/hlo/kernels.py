"""Kernels: functions of arrays that a plan treats as one operator with a sharding rule.

A kernel is an equation with a primitive of its own. Planning infers the shapes of its results and
never lowers it. So a kernel may be written for devices that the planning machine lacks. The emitted
program calls the kernel's function on the shards of one device, in a `shard_map`
(`kiwi.emit.kernels`). Outside of a plan, the function is called on whole arrays.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any

import jax
from jax.extend import core as jex
from jax.interpreters import batching, mlir

from kiwi.errors import InvalidArgumentError
from kiwi.hlo import jax_internals
from kiwi.hlo.regions.work import CUDNN_ATTENTION, inner_jaxprs
from kiwi.hlo.rule import ShardingRule
from kiwi.messages import topics

KERNEL = "kiwi_kernel"

_UNLOWERED = frozenset({KERNEL, "pallas_call", "custom_partitioning"})
"""Primitives that planning does not lower, since they may need devices that its machine lacks."""

Factors = tuple[tuple[str, ...], ...]
"""For each dimension of a tensor, the names of its factors, from major to minor."""


@jax.tree_util.register_static  # A residual that the forward pass hands to the backward pass.
@dataclass(frozen=True, eq=False, repr=False)
class Kernel:
    """A function of arrays with its sharding rule.

    - `function`: takes arrays, which are whole or shards; returns a tuple of arrays.
    - `operands`, `results`: the factors of each tensor.
    - `sharded`: the factors that may be sharded.
    - `share_of_work`: the part of the function's work that the kernel does, in (0, 1]. It is below
      1 for a kernel that skips blocks under a mask.
    - `shifted`: the factor along which each piece passes one element to the next piece; None if
      there is none. The function then takes the names of the mesh axes that cut the factor, as
      `axes`.
    - `partition`: takes a jax mesh and the `PartitionSpec`s of operands and of results. Returns the
      function of shards in these layouts, and the specs of operands and of results that this
      function expects. None if `function` takes the shards.
    - `known_sizes`: sizes of factors that shapes do not determine.
    """

    name: str
    function: Callable[..., tuple[Any, ...]]
    operands: tuple[Factors, ...]
    results: tuple[Factors, ...]
    sharded: frozenset[str]
    share_of_work: float = 1.0
    shifted: str | None = None
    partition: Callable[[Any, Any, Any], tuple[Any, Any, Any]] | None = None
    known_sizes: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.name}: {self.operands} -> {self.results}, sharded: {sorted(self.sharded)}"

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        """Applies the kernel as one operator, and returns its results."""
        return tuple(_kernel_primitive.bind(*operands, kernel=self))

    def sizes(self, operands: Sequence[Any], results: Sequence[Any]) -> dict[str, int]:
        """Returns the size of each factor for operands and results of these shapes.

        **Raises:** `InvalidArgumentError` if the factors do not fit the shapes.
        """
        pairs = [*zip(self.operands, operands, strict=True)]
        pairs += zip(self.results, results, strict=True)
        return factor_sizes(self.name, pairs, self.known_sizes)

    def rule(self, operands: Sequence[Any], results: Sequence[Any]) -> ShardingRule:
        """Returns the sharding rule for operands and results of these shapes.

        **Raises:** `InvalidArgumentError` if the factors do not fit the shapes.
        """
        sizes = self.sizes(operands, results)
        number = {name: k for k, name in enumerate(sizes)}

        def dims(tensors: Iterable[Factors]) -> tuple[tuple[tuple[int, ...], ...], ...]:
            return tuple(
                tuple(tuple(number[factor] for factor in dim) for dim in tensor)
                for tensor in tensors
            )

        blocked = frozenset(k for name, k in number.items() if name not in self.sharded)
        tensors = dims(self.operands), dims(self.results)
        return ShardingRule(tuple(sizes.values()), *tensors, blocked=blocked)


def shardable(operands: Sequence[Factors], results: Sequence[Factors]) -> frozenset[str]:
    """Returns the factors along which a function of tensors with these factors may be sharded.

    All results have such a factor, and it is the major factor of every dimension in which it
    occurs. The function might sum over a factor that a result lacks.
    """
    common = [frozenset(factor for dim in tensor for factor in dim) for tensor in results]
    minor = frozenset(
        factor for tensor in (*operands, *results) for dim in tensor for factor in dim[1:]
    )
    read_factors = frozenset(factor for tensor in operands for dim in tensor for factor in dim)
    return read_factors.intersection(*common) - minor


def is_library_kernel(eqn: Any) -> bool:
    """Whether a traced equation is one kernel that XLA calls and does not compile."""
    name = eqn.primitive.name
    return name == "pallas_call" or name.startswith(CUDNN_ATTENTION)


def is_collective(eqn: Any) -> bool:
    """Whether a traced equation in a `shard_map` is a collective, or asks for its device's
    position."""
    return jax_internals.names_mesh_axes(eqn) and not inner_jaxprs(eqn)


def is_unlowered(eqn: Any) -> bool:
    """Whether planning does not lower a traced equation, or an equation of a region that it
    runs."""
    name = eqn.primitive.name
    return (
        name in _UNLOWERED
        or name.startswith(CUDNN_ATTENTION)
        or is_collective(eqn)
        or any(is_unlowered(inner) for region in inner_jaxprs(eqn) for inner in region.eqns)
    )


def placeholder(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Returns the results of a custom call that stands for an equation which planning does not
    lower."""
    types = [
        jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in eqn.outvars
    ]
    return list(jax.ffi.ffi_call(KERNEL, types)(*operands))


def kernel_jaxpr(kernel: Kernel, eqn: Any) -> Any:
    """Returns the jaxpr of an equation's kernel on whole operands."""
    return _traced(kernel, [variable.aval for variable in eqn.invars]).jaxpr


def kernel_calls(jaxpr: Any) -> int:
    """Returns the number of equations in a jaxpr that call a kernel. If the jaxpr has none itself,
    the equations of its regions count."""
    names = (eqn.primitive.name for eqn in jaxpr.eqns)
    count = sum(n in _UNLOWERED or n.startswith(CUDNN_ATTENTION) for n in names)
    return count or sum(kernel_calls(region) for eqn in jaxpr.eqns for region in inner_jaxprs(eqn))


def kernel_text(kernel: Kernel, jaxpr: Any) -> str:
    """Returns a text that identifies a kernel with its jaxpr, equal in every process."""
    return f"{kernel} {kernel.share_of_work} {kernel.shifted} {jaxpr}"


def factor_sizes(
    name: str,
    pairs: Iterable[tuple[Factors, Sequence[int]]],
    known: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, int]:
    """Returns the size of each factor, from the factors and the shapes of tensors.

    If a dimension has several factors, all but one must have a known size, or a dimension of their
    own elsewhere.

    - `name`: the kernel's name in errors.
    - `pairs`: the factors and the shape of each tensor.
    - `known`: sizes of factors that shapes do not determine.

    **Raises:** `InvalidArgumentError` if the rule does not fit the shapes.
    """
    sizes = dict(known)
    dims = []
    for tensor, shape in pairs:
        if len(tensor) != len(shape):
            raise InvalidArgumentError(
                f"The sharding rule of {name} has {len(tensor)} dimensions for the shape {shape}.",
                topic=topics.RULE_MISFIT,
                suggestion='One word per dimension: "b s h d".',
            )
        dims += zip(tensor, shape, strict=True)
    for factors, size in sorted(dims, key=lambda dim: len(dim[0])):
        unknown = [factor for factor in factors if factor not in sizes]
        missing_size, remainder = divmod(size, prod(sizes.get(factor, 1) for factor in factors))
        if len(unknown) > 1 or remainder or (not unknown and missing_size != 1):
            raise InvalidArgumentError(
                f"The sharding rule of {name} does not fit: {' '.join(factors)} for a dimension of "
                f"{size}, with {sizes}.",
                topic=topics.RULE_MISFIT,
                suggestion="A word stands for one size, in all tensors.",
            )
        sizes.update(dict.fromkeys(unknown, missing_size))
    return sizes


def _traced(kernel: Kernel, avals: Sequence[Any]) -> Any:
    return jax.make_jaxpr(kernel.function)(
        *(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)
    )


def _run(*operands: Any, kernel: Kernel) -> list[Any]:
    return list(kernel.function(*operands))


def _batched(
    operands: Sequence[Any], dims: Sequence[int | None], *, kernel: Kernel
) -> tuple[Any, Any]:
    """Applies a kernel under `jax.vmap`. The new dimension is one more factor, in front, which may
    be sharded."""
    name = f"vmap{len(kernel.results[0])}"
    moved = [
        x if dim is None else jax.numpy.moveaxis(x, dim, 0)
        for x, dim in zip(operands, dims, strict=True)
    ]
    in_axes = tuple(None if dim is None else 0 for dim in dims)

    def function(*operands: Any, **axes: Any) -> tuple[Any, ...]:
        if axes:
            once = functools.partial(kernel.function, **axes)
            return tuple(jax.vmap(once, in_axes)(*operands))
        pairs = zip(operands, dims, strict=True)
        element_types = [
            jax.ShapeDtypeStruct(x.shape[dim is not None :], x.dtype) for x, dim in pairs
        ]
        once = jex.jaxpr_as_fun(_traced(kernel, element_types))
        return tuple(jax.vmap(once, in_axes)(*operands))

    wider = replace(
        kernel,
        function=function,
        operands=tuple(
            tensor if dim is None else ((name,), *tensor)
            for tensor, dim in zip(kernel.operands, dims, strict=True)
        ),
        results=tuple(((name,), *tensor) for tensor in kernel.results),
        sharded=kernel.sharded | {name},
    )
    return wider(*moved), [0] * len(kernel.results)


_kernel_primitive = jex.Primitive(KERNEL)
_kernel_primitive.multiple_results = True
_kernel_primitive.def_impl(_run)
_kernel_primitive.def_abstract_eval(lambda *avals, kernel: _traced(kernel, avals).out_avals)
batching.primitive_batchers[_kernel_primitive] = _batched
mlir.register_lowering(_kernel_primitive, mlir.lower_fun(_run, multiple_results=True))
