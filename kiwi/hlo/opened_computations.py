"""Leaves out a `shard_map` around kernels with a sharding rule if that changes no result.

Users often call a kernel that XLA cannot partition in a `shard_map`. If Kiwi knows the kernel's
sharding rule (`kiwi.sharding_rule`), the `shard_map` only states a layout: its function on whole
arrays has the same results. That is so if

1. the function computes only kernels, elementwise functions, and changes of shape that keep each
   dimension that is cut,
2. each dimension that is cut is a shardable factor of the kernels, or is cut in the same way in all
   operands of an elementwise function,
3. each result is cut as `out_specs` says.

The proof follows the mesh axes of `in_specs` through the function's jaxpr for one device. If an
equation is not known to keep the cuts, the `shard_map` stays.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from jax.extend import core as jex

from kiwi.hlo import jax_internals
from kiwi.hlo.kernels import KERNEL, Kernel

Cut = tuple[tuple[str, ...], ...]
"""For each dimension of a tensor, the mesh axes that cut it."""

_INLINED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
}

_ELEMENTWISE = frozenset(
    {"abs", "add", "add_any", "and", "ceil", "convert_element_type", "copy", "cos", "div", "eq"}
    | {"erf", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log"}
    | {"log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "rem"}
    | {"round", "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient", "sub"}
    | {"tan", "tanh", "xor"}
)


class _Unknown(Exception):
    """An equation is not known to keep the dimensions that are cut."""


def kernel_computations_opened() -> AbstractContextManager[None]:
    """Inside this context manager, a `shard_map` around nothing but kernels with a sharding rule is
    traced as its function on whole arrays."""
    return jax_internals.shard_maps_left_out(is_of_kernels_alone)


def is_of_kernels_alone(jaxpr: Any, in_specs: Sequence[Any], out_specs: Sequence[Any]) -> bool:
    """Whether the function of a `shard_map` computes the same on whole arrays as on shards, and
    calls a kernel.

    - `jaxpr`: the function traced for one device.
    """
    pairs = zip(jaxpr.invars, in_specs, strict=True)
    cuts = {variable: _cut_of(spec, len(variable.aval.shape)) for variable, spec in pairs}
    cuts |= {variable: ((),) * len(variable.aval.shape) for variable in jaxpr.constvars}
    try:
        kernels = _followed(jaxpr, cuts)
        results = [_read(cuts, variable) for variable in jaxpr.outvars]
    except _Unknown:
        return False
    expected_cuts = [
        _cut_of(out_spec, len(variable.aval.shape))
        for out_spec, variable in zip(out_specs, jaxpr.outvars, strict=True)
    ]
    return kernels > 0 and results == expected_cuts


def _cut_of(spec: Any, rank: int) -> Cut:
    entries = [*spec, *[None] * (rank - len(spec))]
    names = (
        () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        for entry in entries
    )
    return tuple(names)


def _read(cuts: Mapping[Any, Cut], atom: Any) -> Cut:
    shape: tuple[int, ...] = atom.aval.shape
    return ((),) * len(shape) if isinstance(atom, jex.Literal) else cuts[atom]


def _followed(jaxpr: Any, cuts: dict[Any, Cut]) -> int:
    """Adds the cuts of the results of all equations to `cuts`; returns the number of kernels.

    **Raises:** `_Unknown` if an equation is not known to keep the dimensions that are cut.
    """
    count = 0
    for eqn in jaxpr.eqns:
        reads = [_read(cuts, variable) for variable in eqn.invars]
        name = eqn.primitive.name
        if name in _INLINED:
            called = eqn.params[_INLINED[name]]
            inner = getattr(called, "jaxpr", called)
            inner_cuts = dict(zip(inner.invars, reads, strict=True))
            inner_cuts |= {
                variable: ((),) * len(variable.aval.shape) for variable in inner.constvars
            }
            count += _followed(inner, inner_cuts)
            result_cuts = [_read(inner_cuts, variable) for variable in inner.outvars]
        elif name == KERNEL:
            count += 1
            result_cuts = _through_kernel(eqn.params["kernel"], reads)
        else:
            through = _THROUGH.get(name, _through_elementwise)
            result_cuts = [through(eqn, reads)]
        cuts.update(zip(eqn.outvars, result_cuts, strict=True))
    return count


def _through_kernel(kernel: Kernel, reads: Sequence[Cut]) -> list[Cut]:
    axes: dict[str, tuple[str, ...]] = {}
    dims = [
        pair
        for tensor, cut in zip(kernel.operands, reads, strict=True)
        for pair in zip(tensor, cut, strict=True)
    ]
    for factors, cut in dims:
        major = factors[0] if factors else None
        if cut and major not in kernel.sharded:
            raise _Unknown
        if major in kernel.sharded and axes.setdefault(major, cut) != cut:
            raise _Unknown
    if kernel.shifted is not None and axes.get(kernel.shifted):
        raise _Unknown
    return [
        tuple(axes.get(dim[0], ()) if dim else () for dim in result) for result in kernel.results
    ]


def _through_elementwise(eqn: Any, reads: Sequence[Cut]) -> Cut:
    shape = eqn.outvars[0].aval.shape
    arrays = [
        cut
        for operand, cut in zip(eqn.invars, reads, strict=True)
        if operand.aval.shape == shape or cut
    ]
    is_alike = all(len(cut) == len(shape) for cut in arrays) and len(set(arrays)) == 1
    if eqn.primitive.name not in _ELEMENTWISE or not is_alike:
        raise _Unknown
    return arrays[0]


def _through_transpose(eqn: Any, reads: Sequence[Cut]) -> Cut:
    return tuple(reads[0][dim] for dim in eqn.params["permutation"])


def _through_squeeze(eqn: Any, reads: Sequence[Cut]) -> Cut:
    gone = eqn.params["dimensions"]
    if any(reads[0][dim] for dim in gone):
        raise _Unknown
    return tuple(cut for dim, cut in enumerate(reads[0]) if dim not in gone)


def _through_broadcast(eqn: Any, reads: Sequence[Cut]) -> Cut:
    """Returns the cuts of a broadcast's result. New dimensions must have one element, and the
    operand must not be a scalar.

    Whether a longer new dimension is a whole dimension or a part of one is not known.
    """
    operand, mapped = eqn.invars[0], eqn.params["broadcast_dimensions"]
    new = [n for dim, n in enumerate(eqn.params["shape"]) if dim not in mapped]
    if any(n != 1 for n in new) or not operand.aval.shape:
        raise _Unknown
    dim_cuts: list[tuple[str, ...]] = [()] * len(eqn.params["shape"])
    for cut, dim in zip(reads[0], mapped, strict=True):
        dim_cuts[dim] = cut
    return tuple(dim_cuts)


_THROUGH: Mapping[str, Callable[[Any, Sequence[Cut]], Cut]] = {
    "broadcast_in_dim": _through_broadcast,
    "squeeze": _through_squeeze,
    "transpose": _through_transpose,
}
