"""Operands that XLA:GPU transposes to another buffer, in a kernel of its own, for a matmul.

A matmul reads the batch, then what is kept and what is summed over, either of the two first, each
in the order in which the left operand is described, and writes its result in either order as well.

- Maps write their results as the reader wants them; what a matmul yields, an argument, and what a
  loop hands on lie as they are. Attention so transposes queries, keys, values and its result, and
  all their gradients: each unit that reads one does so anew.
- What is gathered lies with that dimension first: XLA:GPU gathers along the most major one only
  (`GpuLayoutAssignment`).

Observed with jax 0.10.2 for H100s in the transformers of `benchmarks/fidelity`, and for matrices
and heads of attention gathered along each of their dimensions (`tests/xla/gpu`,
`test_transposed_operands.py` and `test_compiler.py`). Three projections of one operand are one
matmul there, which is not told.
"""

import functools
from collections.abc import Callable, Mapping

from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.library_calls import maps_behind
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import TensorSharding
from kiwi.xla.rules.base import Transposes
from kiwi.xla.rules.matrix_operands import MATMUL, Matrix, matrices

Order = tuple[int, ...]


def transposed_operands(
    units: UnitGraph, unit: Unit
) -> dict[int, Callable[[Mapping[int, int]], bool]]:
    """By number of the read, whether it is transposed; asked with the pieces of each factor."""
    found = {}
    for matrix in matrices(units, unit, (MATMUL,)):
        orders = _orders(units, unit.rule.reads[matrix.read][0])
        if orders:
            found[matrix.read] = functools.partial(_is_transposed, matrix, orders)
    return found


def _is_transposed(matrix: Matrix, orders: tuple[Order, ...], shards: Mapping[int, int]) -> bool:
    lying = ([matrix.dims[d] for d in order] for order in orders)
    return not any(matrix.is_readable(dims, shards) for dims in lying)


def _orders(units: UnitGraph, value: int) -> tuple[Order, ...]:
    """The orders that a value's dimensions may lie in, from major to minor; none where it lies in
    any."""
    graph, producer = units.graph, units.producer.get(value)
    as_it_is = tuple(range(len(graph.program.values[value].shape)))
    unit = None if producer is None else units.units[producer]
    if unit is None or graph.program.equations[unit.root].is_border:
        return (as_it_is,)
    equations = (graph.program.equations[k] for k in unit.equations)
    products = [e for e in equations if e.name == MATMUL]
    if not products:
        return () if is_map(graph, unit.root) else (as_it_is,)
    if maps_behind(units, unit):
        return ()
    (contracted, _), (batch, _) = products[-1].jaxpr_eqn.params["dimension_numbers"]
    if products[-1].jaxpr_eqn.outvars[0].aval.shape != graph.program.values[value].shape:
        return (as_it_is,)
    first = len(products[-1].jaxpr_eqn.invars[0].aval.shape) - len(contracted)
    return as_it_is, (*as_it_is[: len(batch)], *as_it_is[first:], *as_it_is[len(batch) : first])


def transposed_reads(
    units: UnitGraph, unit: Unit, mesh_shape: tuple[int, ...]
) -> dict[int, Transposes]:
    """By number of the read; none of two dimensions, which are read in either order."""
    found = matrices(units, unit, (MATMUL,))
    return {
        m.read: functools.partial(_is_copy_transposed, m, mesh_shape)
        for m in found
        if len(m.dims) > 2
    }


@functools.lru_cache(maxsize=1 << 16)
def _is_copy_transposed(
    matrix: Matrix, mesh_shape: tuple[int, ...], stored: TensorSharding, wanted: TensorSharding
) -> bool:
    """Whether the copy of an operand in the layout `wanted` is transposed."""
    kept = {axis for axes in wanted.dims for axis in axes}
    gathered = [d for d, axes in enumerate(stored.dims) if set(axes) - kept]
    if not gathered:
        return False
    # Of several dimensions the first is gathered last.
    first = gathered[0]
    dims = [matrix.dims[first], *matrix.dims[:first], *matrix.dims[first + 1 :]]
    return not matrix.is_readable(dims, _shards(matrix, mesh_shape, wanted))


def _shards(matrix: Matrix, mesh_shape: tuple[int, ...], layout: TensorSharding) -> dict[int, int]:
    """Into how many pieces a layout cuts each factor: the major ones of a dimension first."""
    found = {}
    for factors, axes in zip(matrix.dims, layout.dims, strict=True):
        left = functools.reduce(lambda n, axis: n * mesh_shape[axis], axes, 1)
        for factor in factors:
            found[factor] = min(left, matrix.sizes[factor])
            left //= found[factor]
    return found
