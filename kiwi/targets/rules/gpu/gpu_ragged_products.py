"""XLA:GPU computes ragged matmuls densely: it stores operands with ragged rows once per group.

`jax.lax.ragged_dot` becomes one matmul that sums over groups and over the summed dimensions. Its
left operand is repeated for each group, with zeros in the rows of the other groups. If the rows are
summed over, as in the gradient of experts, the right operand is repeated as well.

XLA expands the operator after partitioning. The partitioner has no rule that cuts the rows, and
gathers them. So plans emit the dense matmul directly (`kiwi.emit.ragged_products`). They place the
group dimension where cuBLAS can read the repeated operand without a transpose, which XLA's own
expansion needs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import jax
import jax.numpy as jnp

from kiwi.hlo.program import RAGGED_PRODUCTS
from kiwi.hlo.rule import Dims
from kiwi.hlo.units import Unit
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.kernel import MovedBeside, Workspace
from kiwi.targets.rule import Rule, stating
from kiwi.targets.rules.gpu.cublas_workspace import lent_bytes
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule


@dataclass(frozen=True)
class Repeated:
    """An operand that is stored once per group.

    - `place`: the position of the ragged matmul among the unit's equations.
    - `bytes`: the bytes of the repeated operand, for all groups on all devices.
    - `dims`: the factors of the operand's dimensions.
    """

    place: int
    bytes: int
    dims: Dims

    @property
    def factors(self) -> frozenset[int]:
        """The factors of all dimensions of the operand."""
        return frozenset(factor for dimension in self.dims for factor in dimension)

    def local_bytes(self, shards: Mapping[int, int]) -> int:
        """Returns the bytes of one device's part. `shards`: the number of pieces into which each
        factor is cut."""
        return self.bytes // prod(shards.get(factor, 1) for factor in self.factors)


@dataclass(frozen=True, kw_only=True)
class RepeatedOperands(Workspace):
    """The repeated operands of a unit's ragged matmuls, beside the workspace of cuBLAS."""

    operands: tuple[Repeated, ...]

    def buffers(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, ...]:
        """Returns the local bytes of each buffer, see `Workspace.buffers`."""
        lent = Workspace.buffers(self, shards, read_bytes, result_bytes)
        return (*lent, *(operand.local_bytes(shards) for operand in self.operands))


def _repeated(graph: KernelGraph, unit: Unit) -> Iterator[Repeated]:
    """Yields the repeated operands of a unit's ragged matmuls."""
    for place, index in enumerate(unit.equations):
        equation = graph.units.graph.program.equations[index]
        if equation.name not in RAGGED_PRODUCTS:
            continue
        eqn = equation.jaxpr_eqn
        numbers = eqn.params["ragged_dot_dimension_numbers"]
        (summed, _), _ = numbers.dot_dimension_numbers
        are_summed = numbers.lhs_ragged_dimensions[0] in summed
        dims = dict(unit.rule.operator_operands[place])
        for value, variable in zip(equation.inputs[: 1 + are_summed], eqn.invars, strict=False):
            size_bytes = prod(variable.aval.shape) * variable.aval.dtype.itemsize
            size_bytes *= eqn.invars[2].aval.shape[-1]
            yield Repeated(place, size_bytes, dims.get(value, ()))


def _apply(graph: KernelGraph) -> KernelGraph:
    lent = lent_bytes(graph.hardware)
    repeated_by_unit = {unit.index: tuple(_repeated(graph, unit)) for unit in graph.units.units}
    held = {
        index: RepeatedOperands(lent_bytes=lent, operands=operands)
        for index, operands in repeated_by_unit.items()
        if operands
    }
    # A separate kernel writes the repeated operand, and the matmul reads it.
    moved = {
        index: tuple(
            MovedBeside(operand.place, 2 * operand.bytes, operand.factors) for operand in repeated
        )
        for index, repeated in repeated_by_unit.items()
    }
    return graph.stating("workspace", held).adding("moved_beside", moved)


_GROUPS, _ROWS, _WIDTH = 4, 2048, 512


def _multiplied(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(x, w, sizes)


def _repeats(module: InspectedModule) -> bool:
    return any(kernel.writes(_GROUPS * _ROWS * _WIDTH) for kernel in module.kernels)


WITNESS = Witness(
    says="A kernel writes the left operand once for each group.",
    example=Example(
        _multiplied,
        (array(_ROWS, _WIDTH), array(_GROUPS, _WIDTH, 256), array(_GROUPS, dtype="int32")),
    ),
    shows=_repeats,
    # The control multiplies equal parts of the rows by as many matrices.
    control=Example(
        lambda x, w: jnp.einsum("gmk,gkn->gmn", x, w),
        (array(_GROUPS, _ROWS // _GROUPS, _WIDTH), array(_GROUPS, _WIDTH, 256)),
    ),
)


RULE = Rule(
    name="gpu_ragged_products",
    does="A product by groups (`ragged_dot`) stores its left operand once for each group, and both "
    "where rows are summed over. Plans write it as one matmul, whose rows XLA can cut.",
    component="RaggedDotRewriter",
    observed="jax 0.10.2, H100",
    evidence=("benchmarks/field", "tests/emit/test_ragged_products.py"),
    witness=WITNESS,
    states=stating(ragged_densely=True),
    apply=_apply,
)
