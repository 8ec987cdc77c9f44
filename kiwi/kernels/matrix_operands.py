"""Operands of matmuls and convolutions, whose dimensions must have certain orders in memory.

The library reads matrices and images. An operand in another order is first transposed to another
buffer. The orders that can be read directly depend on the compiler, see the rules
`cpu_copied_operands` and `gpu_transposed_operands`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kiwi.hlo.rule import ComposedRule, Dims
from kiwi.hlo.units import Unit, UnitGraph


@dataclass(frozen=True)
class Matrix:
    """An operand of a matmul or convolution in a unit.

    - `read`: the number of the unit's read.
    - `sizes`: the sizes of the unit's factors.
    - `dims`: the factors of each dimension of the value that is read, from major to minor.
    - `groups`: the dimensions of the operator's operand: the batch, then the two groups of a matrix
      in canonical order. All dimensions of a convolution's operand are in the first group.
    """

    read: int
    sizes: tuple[int, ...]
    dims: Dims
    groups: tuple[Dims, Dims, Dims]

    def lies(self, dims: Iterable[Sequence[int]], shards: Mapping[int, int]) -> tuple[int, ...]:
        """Returns the factors of `dims` in order, without factors that have one element on a
        device.

        `shards`: the number of pieces into which factors are cut.
        """
        return tuple(chain.from_iterable(self._longer(dims, shards)))

    def canonical(self, shards: Mapping[int, int]) -> tuple[Dims, Dims, Dims]:
        """Returns the dimensions of each group, without dimensions of one element on a device."""
        batch, rows, columns = (self._longer(group, shards) for group in self.groups)
        return batch, rows, columns

    def is_readable(self, dims: Iterable[Sequence[int]], shards: Mapping[int, int]) -> bool:
        """Whether the operator can read a value whose dimensions have the order `dims`.

        The order must be batch, rows, columns, or batch, columns, rows.
        """
        batch, rows, columns = self.canonical(shards)
        readable = ((*batch, *rows, *columns), (*batch, *columns, *rows))
        return any(self.lies(dims, shards) == self.lies(order, shards) for order in readable)

    def _longer(self, dims: Iterable[Sequence[int]], shards: Mapping[int, int]) -> Dims:
        """Returns the dimensions with more than one element on a device. Each has only its factors
        with more than one element."""
        longer = (
            tuple(factor for factor in dim if self.sizes[factor] > shards.get(factor, 1))
            for dim in dims
        )
        return tuple(dim for dim in longer if dim)


def matrices(units: UnitGraph, unit: Unit, names: Iterable[str]) -> Iterator[Matrix]:
    """Yields the operands that a unit's operators read from outside, directly or through transposes
    and reshapes.

    `names`: the primitives of the operators, `MATMUL` or `CONVOLUTION`.
    """
    program, rule = units.graph.program, unit.rule
    for position, index in enumerate(unit.equations):
        equation = program.equations[index]
        if equation.name not in names:
            continue
        dims_of = dict(rule.operator_operands[position])
        orders = _CANONICAL_ORDERS[equation.name](equation.jaxpr_eqn)
        for operand, order in zip(equation.inputs, orders, strict=True):
            source = _source(units, unit, operand)
            if source is not None:
                batch, rows, columns = (
                    tuple(dims_of[operand][dim] for dim in group) for group in order
                )
                yield from _matrix(rule, source, (batch, rows, columns))


def _matrix(rule: ComposedRule, source: int, groups: tuple[Dims, Dims, Dims]) -> Iterator[Matrix]:
    named = {factor for group in groups for dim in group for factor in dim}
    for position, (value, dims) in enumerate(rule.reads):
        if value == source and set(chain.from_iterable(dims)) == named:
            yield Matrix(position, rule.factor_sizes, dims, groups)


def orders_of_matmul(equation: Any) -> Iterator[tuple[Sequence[int], ...]]:
    """Yields, for each operand of a traced `dot_general`, the dimensions of its groups.

    The canonical order is batch, free, summed for the left operand, and batch, summed, free for the
    right one.
    """
    summed_of, batch_of = equation.params["dimension_numbers"]
    for side, (summed, batch) in enumerate(zip(summed_of, batch_of, strict=True)):
        rank = len(equation.invars[side].aval.shape)
        free = [dim for dim in range(rank) if dim not in (*summed, *batch)]
        yield (batch, free, summed) if side == 0 else (batch, summed, free)


def _orders_of_convolution(equation: Any) -> Iterator[tuple[Sequence[int], ...]]:
    """Yields the groups of a traced `conv_general_dilated`, first of its image and then of its
    kernel. Only the first group has dimensions."""
    numbers = equation.params["dimension_numbers"]
    batch, features, *space = numbers.lhs_spec
    yield (batch, *space, features), (), ()
    outputs, inputs, *space = numbers.rhs_spec
    yield (*space, inputs, outputs), (), ()


MATMUL, CONVOLUTION = "dot_general", "conv_general_dilated"

_CANONICAL_ORDERS = {CONVOLUTION: _orders_of_convolution, MATMUL: orders_of_matmul}


def _source(units: UnitGraph, unit: Unit, operand: object) -> int | None:
    """Returns the value that a unit reads for an operand of one of its operators, through
    transposes and reshapes; None if another operator computes the operand."""
    program = units.graph.program
    while isinstance(operand, int) and operand not in unit.reads:
        producer = program.values[operand].producer
        if producer is None or producer not in unit.equations:
            return None
        reads = program.equations[producer].reads
        if units.graph.opcodes[producer] - {"transpose", "reshape"} or len(reads) != 1:
            return None
        (operand,) = reads
    return operand if isinstance(operand, int) else None
