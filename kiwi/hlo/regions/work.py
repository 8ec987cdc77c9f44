"""Work of the regions of an equation: loops, branches, manual computations.

Kiwi prices a region that it does not open from its jaxpr. Shapes inside of a `shard_map` are local
shapes of one device. Shapes inside of other regions are global.

- A `scan` takes its body times its length.
- A Pallas kernel takes its body in each place of its grid (`kiwi.hlo.grids`).
- A `cond` takes its costliest branch.
- A `while` takes its body and its condition times its trip count (`kiwi.hlo.trips`).

`kiwi.hlo.regions.memory` computes the memory of regions.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

from jax.extend import core as jex

from kiwi.hlo.costs import FREE_OPCODES
from kiwi.hlo.grids import kernel_work
from kiwi.hlo.trips import DEFAULT_TRIPS, trips_of_while

CUDNN_ATTENTION = "dot_product_attention_"
"""The prefix of the primitives that jax binds for attention by cuDNN."""

_MULTIPLY = frozenset({"conv_general_dilated", "dot_general", "pallas_call"})
"""Primitives that matrix units compute. Pallas kernels are assumed to use them."""

_NOT_ABSORBED = frozenset(
    {"cholesky", "concatenate", "conv_general_dilated", "cumlogsumexp", "cummax", "cumprod"}
    | {"cumsum", "dot_general", "dynamic_update_slice", "gather", "pad", "rev", "scatter"}
    | {"all_to_all", "pmax", "pmin", "ppermute", "psum", "psum_invariant"}
)
"""Primitives that are not elementwise, although their results may have the shape of an operand."""

_LAYOUT = frozenset(
    {"broadcast_in_dim", "expand_dims", "iota", "reshape", "slice", "squeeze", "transpose"}
)
"""Primitives that only rearrange, repeat or cut their operand. Each reader computes them."""

_VIEWS = frozenset({"expand_dims", "reshape", "squeeze"})
"""The members of `_LAYOUT` that do not move bytes."""


def inner_jaxprs(eqn: Any) -> list[Any]:
    """Returns the jaxprs that an equation runs, without their constants."""
    return [getattr(region, "jaxpr", region) for region in jex.jaxprs_in_params(eqn.params)]


def called_name(eqn: Any) -> str:
    """Returns the name of the function that a kernel's equation calls; the primitive's name if the
    equation has no jaxpr."""
    inner = inner_jaxprs(eqn)
    return inner[0].debug_info.func_name if inner else eqn.primitive.name


def trips(eqn: Any) -> int:
    """Returns the number of times that an equation runs its region: 1 if the region is no loop."""
    if eqn.primitive.name == "scan":
        return eqn.params["length"]
    if eqn.primitive.name == "pallas_call":
        return prod(n for n in eqn.params["grid_mapping"].grid if isinstance(n, int))
    if eqn.primitive.name != "while":
        return 1
    constants, of_body = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    inputs = (*eqn.invars[:constants], *eqn.invars[constants + of_body :])
    return trips_of_while(eqn, inputs, DEFAULT_TRIPS)


def multiplies_inside(eqn: Any) -> bool:
    """Whether the regions that an equation runs contain a matmul, a convolution or a kernel."""
    inner = [inner_eqn for region in inner_jaxprs(eqn) for inner_eqn in region.eqns]
    return any(
        inner_eqn.primitive.name in _MULTIPLY
        or inner_eqn.primitive.name.startswith(CUDNN_ATTENTION)
        or multiplies_inside(inner_eqn)
        for inner_eqn in inner
    )


def region_flops(eqn: Any) -> float:
    """Returns the floating-point operations of an equation that runs regions."""
    if eqn.primitive.name == "pallas_call":
        return kernel_work(eqn, equation_flops)
    if eqn.primitive.name == "while":
        return trips(eqn) * sum(jaxpr_flops(region) for region in inner_jaxprs(eqn))
    return trips(eqn) * max((jaxpr_flops(body) for body in inner_jaxprs(eqn)), default=0.0)


def jaxpr_flops(jaxpr: Any) -> float:
    """Returns the floating-point operations of all equations of a jaxpr."""
    return sum(equation_flops(eqn) for eqn in jaxpr.eqns)


def equation_flops(eqn: Any) -> float:
    """Returns the floating-point operations of one equation, including the regions that it runs.

    A multiply-add counts as two.
    """
    if inner_jaxprs(eqn):
        return region_flops(eqn)
    name = eqn.primitive.name
    if name in FREE_OPCODES:
        return 0.0
    if name.startswith(CUDNN_ATTENTION):
        return _attention_flops(eqn)
    out = float(sum(elements(variable) for variable in eqn.outvars))
    if name == "dot_general":
        (contracting, _), _ = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        return 2.0 * out * prod(shape[dim] for dim in contracting)
    if name == "conv_general_dilated":
        features = eqn.params["dimension_numbers"].rhs_spec[0]
        kernel = eqn.invars[1].aval.shape
        return 2.0 * out * prod(kernel) / max(1, kernel[features])
    return max(out, max((float(elements(variable)) for variable in eqn.invars), default=0.0))


def _attention_flops(eqn: Any) -> float:
    """Returns the operations of two matmuls, or of five in the backward pass. A causal mask is
    assumed to save nothing."""
    query, key = (operand.aval.shape for operand in eqn.invars[:2])
    length = key[-2 if eqn.params["layout"] else -3]
    return 2.0 * prod(query) * length * (5 if "_bwd" in eqn.primitive.name else 2)


def elements(variable: Any) -> int:
    """Returns the number of elements of a variable of a jaxpr; 1 if it has no shape."""
    return prod(getattr(variable.aval, "shape", ()))


def moved_bytes(jaxpr: Any) -> int:
    """Returns the bytes that a jaxpr's operators move through memory, including its regions and
    without library kernels.

    An operator that is not fused reads the operands of its fusion and writes its result.
    """
    readers, total = readers_of(jaxpr), 0
    reads: dict[Any, frozenset[Any]] = {}
    for eqn in jaxpr.eqns:
        sources = [reads.get(variable, frozenset({variable})) for variable in variables(eqn.invars)]
        operands = frozenset[Any]().union(*sources)
        is_fused = len(eqn.outvars) == 1 and is_absorbed(eqn, eqn.outvars[0], readers)
        if is_fused and eqn.outvars[0] not in jaxpr.outvars:
            reads[eqn.outvars[0]] = operands
        elif not _is_library_kernel(eqn):
            regions = inner_jaxprs(eqn)
            total += trips(eqn) * sum(map(moved_bytes, regions))
            total += 0 if regions else sum(map(size_bytes, (*operands, *eqn.outvars)))
    return total


def readers_of(jaxpr: Any) -> dict[Any, list[str]]:
    """Returns, by variable, the kinds (`_kind`) of the equations that read it, in order."""
    readers: dict[Any, list[str]] = {}
    for eqn in jaxpr.eqns:
        for variable in dict.fromkeys(variables(eqn.invars)):
            readers.setdefault(variable, []).append(_kind(eqn))
    return readers


def _kind(eqn: Any) -> str:
    """Returns the name of an equation's primitive. A `dot_general` with only batch dimensions in
    its result is a product of vectors, and counts as `reduce_sum`."""
    name = eqn.primitive.name
    if name == "dot_general":
        _, (batch, _) = eqn.params["dimension_numbers"]
        return "reduce_sum" if len(eqn.outvars[0].aval.shape) == len(batch) else name
    return name


def variables(atoms: Any) -> Iterator[Any]:
    """Returns the operands that are variables, without literals."""
    return (atom for atom in atoms if not isinstance(atom, jex.Literal))


def size_bytes(variable: Any) -> int:
    """Returns the bytes of a variable of a jaxpr; 0 if its dtype has no known size."""
    itemsize = getattr(getattr(variable.aval, "dtype", None), "itemsize", 0)
    return elements(variable) * itemsize


def _is_library_kernel(eqn: Any) -> bool:
    return _calls_library(eqn.primitive.name)


def _calls_library(primitive: str) -> bool:
    """Whether XLA computes a primitive by a library call, and fuses nothing into it."""
    return primitive == "pallas_call" or primitive.startswith(CUDNN_ATTENTION)


def is_absorbed(
    eqn: Any, variable: Any, readers: dict[Any, list[str]], *, read_once: bool = True
) -> bool:
    """Whether XLA fuses a result into its readers. A library kernel reads it from memory.

    - `variable`: the result of `eqn`.
    - `readers`: by variable, the primitives that read it, see `readers_of`.
    - `read_once`: whether a result with several readers is stored. A change of layout is fused
      into all its readers anyway.
    """
    if inner_jaxprs(eqn) or eqn.primitive.name in _NOT_ABSORBED or len(eqn.outvars) > 1:
        return False
    reader_names = readers.get(variable, [])
    is_written = eqn.primitive.name not in _VIEWS and any(map(_calls_library, reader_names))
    if eqn.primitive.name in _LAYOUT:
        return not is_written
    shapes = {getattr(operand.aval, "shape", ()) for operand in eqn.invars} - {()}
    maps = all(_spreads(shape, variable.aval.shape) for shape in shapes)
    return (
        maps
        and (len(reader_names) <= 1 or not read_once)
        and "dot_general" not in reader_names
        and not is_written
    )


def _spreads(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Whether an elementwise operator with a result of shape `result` can read an operand of shape
    `shape`. It repeats the operand along dimensions of one element."""
    pairs = zip(shape, result, strict=False)
    return len(shape) == len(result) and all(n in (1, result_size) for n, result_size in pairs)
