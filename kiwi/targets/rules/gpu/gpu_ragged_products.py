"""XLA:GPU multiplies by groups densely: operands that have the rows are stored for each group.

`jax.lax.ragged_dot` becomes one matmul over groups and summed dimensions. Its left operand is
repeated for each group, with zeros in the rows of others, and so is the right one where the rows
are summed over, as in the gradient of the experts.

XLA expands the operator behind the partitioner, which gathers the rows before it: it knows no rule
that cuts them. So plans write it as the matmul that it becomes (`kiwi.emit.ragged_products`), with
the groups where cuBLAS reads the repeated operand as it lies; XLA's own is transposed first.
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
    """An operand that is stored for each group.

    - `place`: of the product among the unit's equations.
    - `bytes`: of all groups on all devices. `dims`: the factors of the operand.
    """

    place: int
    bytes: int
    dims: Dims

    @property
    def factors(self) -> frozenset[int]:
        """Those of all dimensions."""
        return frozenset(factor for dimension in self.dims for factor in dimension)

    def local_bytes(self, shards: Mapping[int, int]) -> int:
        """Of one device's part, where factors are cut into so many pieces."""
        return self.bytes // prod(shards.get(factor, 1) for factor in self.factors)


@dataclass(frozen=True, kw_only=True)
class RepeatedOperands(Workspace):
    """The operands of a unit's products by groups."""

    operands: tuple[Repeated, ...]

    def buffers(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, ...]:
        """As `Workspace.buffers`."""
        lent = Workspace.buffers(self, shards, read_bytes, result_bytes)
        return (*lent, *(operand.local_bytes(shards) for operand in self.operands))


def _repeated(graph: KernelGraph, unit: Unit) -> Iterator[Repeated]:
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
    # Another kernel writes them; the matmul reads them.
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
    # The same number of matmuls over equal parts of the rows.
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
