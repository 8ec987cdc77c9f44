"""Gathered copies that XLA:GPU's matmuls cannot read as they lie.

XLA:GPU gathers along the most major dimension only (`GpuLayoutAssignment`): what is gathered along
another one lies with that dimension first. A matmul reads the batch, then what is kept and what is
summed over, either of the two first, each in the order in which the left operand is described.
Gathered copies that lie otherwise are transposed to another buffer before it runs.

Observed with jax 0.10.2, H100, for matrices of two dimensions kept or summed over and for heads of
attention, gathered along each of their dimensions; `tests/xla/gpu/test_compiler.py` holds it.
"""

import functools

from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import TensorSharding
from kiwi.xla.rules.base import Transposes
from kiwi.xla.rules.matrix_operands import MATMUL, Matrix, matrices


def transposed_reads(
    units: UnitGraph, unit: Unit, mesh_shape: tuple[int, ...]
) -> dict[int, Transposes]:
    """By number of the read; none of two dimensions, which are read in either order."""
    found = matrices(units, unit, (MATMUL,))
    return {
        m.read: functools.partial(_is_transposed, m, mesh_shape) for m in found if len(m.dims) > 2
    }


@functools.lru_cache(maxsize=1 << 16)
def _is_transposed(
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
