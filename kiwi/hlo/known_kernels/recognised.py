"""Recognises known kernels wherever a step calls them.

While a step is traced, each function of the registry (`registry`) is replaced by a function that
puts a kernel with a sharding rule into the trace (`rules`). So the call is recognised before jax
differentiates and inlines it, and its function and static arguments are still there. The emitted
program calls this function with shards. A finished trace has neither: a call under `jax.jit` or
`jax.custom_vjp` holds a jaxpr for whole arrays, and a gradient has only the `pallas_call`s of the
backward pass.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kiwi.errors import InvalidArgumentError
from kiwi.hlo import jax_internals
from kiwi.hlo.kernels import Factors, factor_sizes, shardable
from kiwi.hlo.known_kernels.registry import Arguments, KernelRule, KnownKernel, recognised_kernels
from kiwi.hlo.known_kernels.replaced_functions import replaced
from kiwi.hlo.known_kernels.rules import applied
from kiwi.messages import topics


def kernels_recognised() -> AbstractContextManager[Any]:
    """Inside this context manager, calls of known kernels are traced as kernels with a sharding
    rule."""
    kernels = recognised_kernels()
    stack = ExitStack()
    stack.enter_context(replaced({kernel.name: _called for kernel in kernels}))
    stack.enter_context(jax_internals.known_kernels_in_traces(kernels))
    return stack


def _called(name: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Returns the result of a call of a known function, as a kernel.

    Outside of `kernels_recognised`, in another thread, and inside of another kernel, the original
    function is called.
    """
    active = jax_internals.known_kernels() or ()
    entry = next((kernel for kernel in active if kernel.name == name), None)
    if entry is None:
        return original(*args, **kwargs)
    return _as_kernel(entry, original, args, kwargs)


@dataclass(frozen=True)
class _Operand:
    """An array among the arguments of a call. `name`: the name of its parameter, with the path of
    the array inside of the argument."""

    name: str
    array: Any


def _as_kernel(known: KnownKernel, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    bound = inspect.signature(original).bind(*args, **kwargs)
    bound.apply_defaults()
    names = [*bound.arguments]
    leaves, tree = jax.tree_util.tree_flatten_with_path([*bound.arguments.values()])
    places = [k for k, (_, leaf) in enumerate(leaves) if _is_operand(leaf)]
    operands = [_Operand(_path(names, leaves[k][0]), leaves[k][1]) for k in places]

    def call(*arrays: Any) -> Any:
        values = [_made_again(leaf) for _, leaf in leaves]
        for place, array in zip(places, arrays, strict=True):
            values[place] = array
        arguments = OrderedDict(zip(names, tree.unflatten(values), strict=True))
        call_arguments = inspect.BoundArguments(bound.signature, arguments)
        return original(*call_arguments.args, **call_arguments.kwargs)

    with jax_internals.known_kernels_in_traces(None):
        types = jax.eval_shape(call, *(operand.array for operand in operands))
    results, result_tree = jax.tree.flatten(types)
    sizes = known.sizes(bound.arguments)
    fitted = _fitted(known, bound.arguments, sizes, operands, results)
    if fitted is None:
        return original(*args, **kwargs)
    outputs = applied(
        known.name.rpartition(".")[2],
        lambda *arrays: tuple(jax.tree.leaves(call(*arrays))),
        *fitted,
        shardable(*fitted) - known.whole,
        known.share_of_work(bound.arguments),
        sizes,
        [operand.array for operand in operands],
    )
    return result_tree.unflatten(outputs)


def _is_operand(leaf: Any) -> bool:
    """Whether a leaf of an argument is an operand of the kernel. An array without elements only
    says that something is absent. Each device makes such an array again."""
    return isinstance(leaf, jax.Array | np.ndarray) and leaf.size > 0


def _made_again(leaf: Any) -> Any:
    is_empty = isinstance(leaf, jax.Array) and leaf.size == 0
    return jnp.zeros(leaf.shape, leaf.dtype) if is_empty else leaf


def _path(names: Sequence[str], keys: Sequence[Any]) -> str:
    """Returns the name of a parameter with the path of an array inside of the argument, such as
    `segment_ids.q`. The first key is the number of the parameter."""
    path = jax.tree_util.keystr(tuple(keys[1:]), simple=True, separator=".")
    number: int = keys[0].idx
    name = names[number]
    return f"{name}.{path}" if path else name


def _fitted(
    known: KnownKernel,
    arguments: Arguments,
    sizes: Mapping[str, int],
    operands: Sequence[_Operand],
    results: Sequence[Any],
) -> tuple[tuple[Factors, ...], tuple[Factors, ...]] | None:
    """Returns the factors of operands and of results by the first rule that fits; None if no rule
    of a shipped kernel fits.

    **Raises:** `InvalidArgumentError` if no rule fits a kernel that the user registered.
    """
    errors = []
    for rule in known.rules(arguments):
        try:
            return _by_rule(known.name, rule, sizes, operands, results)
        except InvalidArgumentError as error:
            errors.append(error)
    if known.is_shipped:
        return None
    raise errors[0]


def _by_rule(
    name: str,
    rule: KernelRule,
    sizes: Mapping[str, int],
    operands: Sequence[_Operand],
    results: Sequence[Any],
) -> tuple[tuple[Factors, ...], tuple[Factors, ...]]:
    named = {entry.name: entry.factors for entry in rule.operands if entry.name is not None}
    ordered = [entry.factors for entry in rule.operands if entry.name is None]
    in_order = [operand.name for operand in operands if operand.name not in named]
    if len(in_order) < len(ordered) or len(results) != len(rule.results):
        shapes = ", ".join(f"{entry.name} {entry.array.shape}" for entry in operands)
        raise InvalidArgumentError(
            f"The sharding rule of {name}, {rule.text!r}, does not fit a call with the arrays "
            f"{shapes} and {len(results)} results.",
            topic=topics.RULE_MISFIT,
            suggestion="Give register_kernel one rule for each signature of the function.",
        )
    factors_of = {**named, **dict(zip(in_order, ordered, strict=False))}
    pairs = [
        (
            factors_of.get(operand.name) or _apart(operand.name, operand.array.shape),
            operand.array.shape,
        )
        for operand in operands
    ]
    pairs += zip(rule.results, (result.shape for result in results), strict=True)
    tensors = _without_repeated(pairs, sizes)
    shapes = (shape for _, shape in pairs)
    factor_sizes(name, zip(tensors, shapes, strict=True), sizes)
    return tuple(tensors[: len(operands)]), tuple(tensors[len(operands) :])


def _without_repeated(
    pairs: Sequence[tuple[Factors, Sequence[int]]], sizes: Mapping[str, int]
) -> list[Factors]:
    """Returns the factors of tensors, from pairs of the rule's factors and the tensor's shape.

    A dimension of one element whose factors are longer elsewhere, such as one mask for all heads,
    gets a factor of its own.
    """
    all_sizes = dict(sizes)
    dims = [pair for tensor, shape in pairs for pair in zip(tensor, shape, strict=False)]
    for factors, size in sorted(dims, key=lambda dim: (len(dim[0]), -dim[1])):
        unknown = [factor for factor in factors if factor not in all_sizes]
        if len(unknown) == 1:
            all_sizes[unknown[0]] = max(
                1, size // prod(all_sizes.get(factor, 1) for factor in factors)
            )
    return [
        tuple(
            (f"repeated {k} {axis}",)
            if n == 1 and prod(all_sizes.get(factor, 1) for factor in dim) > 1
            else dim
            for axis, (dim, n) in enumerate(zip(tensor, shape, strict=False))
        )
        if len(tensor) == len(shape)
        else tensor
        for k, (tensor, shape) in enumerate(pairs)
    ]


def _apart(name: str, shape: Sequence[int]) -> Factors:
    """Returns the factors of an array that the rule does not mention. The array stays whole."""
    return tuple((f"{name} {dim}",) for dim in range(len(shape)))
