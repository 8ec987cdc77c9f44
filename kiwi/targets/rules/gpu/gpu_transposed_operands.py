"""XLA:GPU transposes operands of a matmul to another buffer, in a separate kernel.

A matmul reads operands whose dimensions lie in the order batch, kept, summed, or batch, summed,
kept. Within a group the left operand determines the order. A matmul also writes its result in
either order of the two operands' kept dimensions.

- A map writes its result in the order that its reader needs. The result of a matmul, an argument,
  and a value that a loop carries or stacks have a fixed order. Attention therefore transposes
  queries, keys, values and its result, and all their gradients. Each unit that reads such a value
  transposes it again.
- A gathered operand has the gathered dimension first: XLA:GPU gathers along the most major
  dimension only (`GpuLayoutAssignment`).
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.library_calls import maps_behind
from kiwi.kernels.matrix_operands import MATMUL, Matrix, matrices
from kiwi.mesh import TensorSharding
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule

Order = tuple[int, ...]
"""Dimensions of a value, from major to minor."""


@dataclass(frozen=True)
class LyingOperand:
    """An operand of a matmul with a fixed order of dimensions.

    - `matrix`: the operand.
    - `orders`: the orders in which the operand may lie.
    """

    matrix: Matrix
    orders: tuple[Order, ...]

    def is_transposed(self, shards: Mapping[int, int]) -> bool:
        """Returns whether the matmul can read none of the orders. `shards`: the number of pieces
        into which each factor is cut."""
        lying = ([self.matrix.dims[dimension] for dimension in order] for order in self.orders)
        return not any(self.matrix.is_readable(dims, shards) for dims in lying)


def transposed_operands(units: UnitGraph, unit: Unit) -> tuple[tuple[int, LyingOperand], ...]:
    """Returns the operands of a unit's matmuls that a separate kernel may transpose, by number of
    the read."""
    operands = {}
    for matrix in matrices(units, unit, (MATMUL,)):
        orders = _orders(units, unit.rule.reads[matrix.read][0])
        if orders:
            operands[matrix.read] = LyingOperand(matrix, orders)
    return tuple(operands.items())


def _orders(units: UnitGraph, value: int) -> tuple[Order, ...]:
    """Returns the orders in which a value may lie; empty if the value may lie in any order, because
    a map computes it."""
    graph, producer = units.graph, units.producer.get(value)
    as_it_is = tuple(range(len(graph.program.values[value].shape)))
    unit = None if producer is None else units.units[producer]
    if unit is None or graph.program.equations[unit.root].is_border:
        return (as_it_is,)
    equations = (graph.program.equations[index] for index in unit.equations)
    products = [equation for equation in equations if equation.name == MATMUL]
    if not products:
        return () if is_map(graph, unit.root) else (as_it_is,)
    if maps_behind(units, unit):
        return ()
    (contracted, _), (batch, _) = products[-1].jaxpr_eqn.params["dimension_numbers"]
    if products[-1].jaxpr_eqn.outvars[0].aval.shape != graph.program.values[value].shape:
        return (as_it_is,)
    first = len(products[-1].jaxpr_eqn.invars[0].aval.shape) - len(contracted)
    return as_it_is, (*as_it_is[: len(batch)], *as_it_is[first:], *as_it_is[len(batch) : first])


@dataclass(frozen=True)
class GatheredOperand:
    """An operand of a matmul with more than two dimensions. A gather may make a copy of the
    operand."""

    matrix: Matrix

    def is_transposed(
        self, mesh_shape: tuple[int, ...], stored: TensorSharding, wanted: TensorSharding
    ) -> bool:
        """Returns whether the copy in the layout `wanted` is transposed; see
        `kiwi.kernels.kernel.TransposedCopy`."""
        return _is_copy_transposed(self.matrix, mesh_shape, stored, wanted)


def gathered_operands(units: UnitGraph, unit: Unit) -> tuple[tuple[int, GatheredOperand], ...]:
    """Returns the operands of a unit's matmuls whose gathered copies may be transposed, by number
    of the read. Operands of two dimensions can be read in either order, and are left out."""
    operands = matrices(units, unit, (MATMUL,))
    by_read = {matrix.read: GatheredOperand(matrix) for matrix in operands if len(matrix.dims) > 2}
    return tuple(by_read.items())


@functools.lru_cache(maxsize=1 << 16)
def _is_copy_transposed(
    matrix: Matrix, mesh_shape: tuple[int, ...], stored: TensorSharding, wanted: TensorSharding
) -> bool:
    """Returns whether the copy of an operand in the layout `wanted`, gathered from the layout
    `stored`, is transposed."""
    kept = {axis for axes in wanted.dims for axis in axes}
    gathered = [dimension for dimension, axes in enumerate(stored.dims) if set(axes) - kept]
    if not gathered:
        return False
    # If several dimensions are gathered, the first of them is gathered last.
    first = gathered[0]
    dims = [matrix.dims[first], *matrix.dims[:first], *matrix.dims[first + 1 :]]
    return not matrix.is_readable(dims, _shards(matrix, mesh_shape, wanted))


def _shards(matrix: Matrix, mesh_shape: tuple[int, ...], layout: TensorSharding) -> dict[int, int]:
    """Returns the number of pieces into which a layout cuts each factor. A dimension is cut along
    its major factors first."""
    shards = {}
    for factors, axes in zip(matrix.dims, layout.dims, strict=True):
        pieces_left = functools.reduce(lambda pieces, axis: pieces * mesh_shape[axis], axes, 1)
        for factor in factors:
            shards[factor] = min(pieces_left, matrix.sizes[factor])
            pieces_left //= shards[factor]
    return shards


def _apply(graph: KernelGraph) -> KernelGraph:
    units = graph.units
    operands = {unit.index: transposed_operands(units, unit) for unit in units.units}
    copies = {unit.index: gathered_operands(units, unit) for unit in units.units}
    return graph.adding("transposed_operands", operands).adding("transposed_copies", copies)


def _scores(
    x: jax.Array, wq: jax.Array, wk: jax.Array, mapped: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    queries = mapped(jnp.einsum("bsd,dhk->bshk", x, wq))
    keys = mapped(jnp.einsum("btd,dhk->bthk", x, wk))
    return jnp.einsum("bshk,bthk->bhst", queries, keys)


_ATTENTION = array(4, 128, 256), array(256, 8, 32), array(256, 8, 32)


def _transposes_alone(module: InspectedModule) -> bool:
    transposes = module.with_opcodes("transpose")
    return len(transposes) == 2 and not any(kernel.computes("sine") for kernel in transposes)


WITNESS = Witness(
    says="Queries and keys are transposed by a kernel each that does nothing else.",
    example=Example(lambda x, q, k: _scores(x, q, k, lambda y: y), _ATTENTION),
    shows=_transposes_alone,
    # The kernel of a map behind the matmul writes them in the order wanted.
    control=Example(lambda x, q, k: _scores(x, q, k, jnp.sin), _ATTENTION),
)


RULE = Rule(
    name="gpu_transposed_operands",
    does="A matmul reads the batch, then what is kept and what is summed over, either of the two "
    "first. An operand that lies otherwise is transposed to another buffer.",
    component="GpuLayoutAssignment, TransposeFolding",
    observed="jax 0.10.2, H100",
    evidence=("tests/targets/test_gpu_transposed_operands.py", "tests/xla/gpu/test_compiler.py"),
    witness=WITNESS,
    apply=_apply,
    limits="Three projections of one operand are one matmul, which is not told.",
)
