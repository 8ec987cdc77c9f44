"""Operands that XLA:CPU copies before an operator can read them.

1. A matmul reads matrices (`DotDecomposer`): the left operand's dimensions in the order batch,
   kept, summed, the right one's in the order batch, summed, kept, each group as the operator names
   it. Where both groups behind the batch are one dimension at most, they may be swapped
   (`TransposeFolding`). An operand that lies otherwise is transposed first, unless the map that
   computes it runs just before and writes it so. XLA:GPU's matmuls read more orders.
2. A convolution reads images in the order batch, space, features and kernels in the order space,
   inputs, outputs (`CpuConvCanonicalization`), with the same exception. The gradient of a kernel
   reads both of its operands otherwise, that of an image the kernel.
3. A concatenation copies what it joins, and a window slides over its operand (`reduce_window`,
   `select_and_scatter`), each computed first. XLA:GPU fuses them.

Observed with jax 0.10.2 in the compiled programs of `benchmarks/fidelity` (LSTM, GPT, U-Net) and of
`benchmarks/remat` (U-Net, convnet); `tests/plan/test_memory.py` holds them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from kiwi.hlo.fusion import is_map, opcodes
from kiwi.hlo.program import Equation
from kiwi.hlo.rule import ComposedRule, Dims
from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph

_COMPUTE_APART = frozenset({"concatenate", "reduce_window", "select_and_scatter"})
"""Opcodes of rule 3."""


@dataclass(frozen=True)
class CopiedOperands:
    """What a unit's operators may copy.

    - `matrices`: what matmuls and convolutions read.
    - `apart`: what is computed apart, as multiples of the result.
    """

    matrices: tuple["_Matrix", ...] = ()
    apart: tuple[float, ...] = ()

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit) -> "CopiedOperands":
        """Those of `unit`."""
        return cls(tuple(_matrices(units, unit)), tuple(_computed_apart(units, unit)))

    def buffers(
        self, shards: Mapping[int, int], read_bytes: Sequence[int], result_bytes: int
    ) -> tuple[int, ...]:
        """Local bytes of each copy; `shards` per factor, `read_bytes` local ones per read."""
        transposed = (read_bytes[m.read] for m in self.matrices if m.is_transposed(shards))
        apart = (int(part * result_bytes) for part in self.apart)
        return tuple(size for size in (*transposed, *apart) if size)


@dataclass(frozen=True)
class _Matrix:
    """Read number `read`: how its factors lie, from major to minor, and how its reader names them.

    `groups`: the dimensions of the batch, then the two groups of a matrix in canonical order. All
    dimensions of what a convolution reads are of the first group.
    """

    read: int
    sizes: tuple[int, ...]
    stored: tuple[int, ...]
    groups: tuple[Dims, Dims, Dims]

    def is_transposed(self, shards: Mapping[int, int]) -> bool:
        """Whether it is copied. Factors of which a device has one element lie in any order."""
        batch, rows, columns = (self._longer(group, shards) for group in self.groups)
        readable = [(*batch, *rows, *columns)]
        if len(rows) <= 1 and len(columns) <= 1:
            readable.append((*batch, *columns, *rows))
        lies = tuple(chain.from_iterable(self._longer([self.stored], shards)))
        return all(lies != tuple(chain.from_iterable(order)) for order in readable)

    def _longer(
        self, dims: Iterable[Sequence[int]], shards: Mapping[int, int]
    ) -> list[tuple[int, ...]]:
        """Dimensions of more than one element, as their factors of more than one."""
        longer = (tuple(f for f in dim if self.sizes[f] > shards.get(f, 1)) for dim in dims)
        return [dim for dim in longer if dim]


def _matrices(units: UnitGraph, unit: Unit) -> Iterator[_Matrix]:
    program, rule = units.graph.program, unit.rule
    for position, index in enumerate(unit.equations):
        equation = program.equations[index]
        orders_of = _CANONICAL_ORDERS.get(equation.name)
        if orders_of is None:
            continue
        dims_of = dict(rule.operator_operands[position])
        for operand, order in zip(equation.inputs, orders_of(equation), strict=True):
            source = _source(units, unit, operand)
            if source is not None and not _is_written_so(units, unit, source):
                batch, rows, columns = (tuple(dims_of[operand][d] for d in g) for g in order)
                yield from _matrix(rule, source, (batch, rows, columns))


def _matrix(rule: ComposedRule, source: int, groups: tuple[Dims, Dims, Dims]) -> Iterator[_Matrix]:
    named = {factor for group in groups for dim in group for factor in dim}
    for read, (value, dims) in enumerate(rule.reads):
        stored = tuple(chain.from_iterable(dims))
        if value == source and set(stored) == named:
            yield _Matrix(read, rule.factor_sizes, stored, groups)


def _orders_of_matmul(equation: Equation) -> Iterator[tuple[Sequence[int], ...]]:
    """For each operand of a `dot_general` the dimensions of its groups, in canonical order."""
    summed_of, batch_of = equation.jaxpr_eqn.params["dimension_numbers"]
    for side, (summed, batch) in enumerate(zip(summed_of, batch_of, strict=True)):
        rank = len(equation.jaxpr_eqn.invars[side].aval.shape)
        kept = [d for d in range(rank) if d not in (*summed, *batch)]
        yield (batch, kept, summed) if side == 0 else (batch, summed, kept)


def _orders_of_convolution(equation: Equation) -> Iterator[tuple[Sequence[int], ...]]:
    """The same of a `conv_general_dilated`: its image's dimensions, then its kernel's."""
    numbers = equation.jaxpr_eqn.params["dimension_numbers"]
    batch, features, *space = numbers.lhs_spec
    yield (batch, *space, features), (), ()
    outputs, inputs, *space = numbers.rhs_spec
    yield (*space, inputs, outputs), (), ()


_CANONICAL_ORDERS = {
    "conv_general_dilated": _orders_of_convolution,
    "dot_general": _orders_of_matmul,
}


def _source(units: UnitGraph, unit: Unit, operand: object) -> int | None:
    """The value that a unit reads for an operand, through changes of layout."""
    program = units.graph.program
    while isinstance(operand, int) and operand not in unit.reads:
        producer = program.values[operand].producer
        if producer is None or producer not in unit.equations:
            return None
        reads = program.equations[producer].reads
        if opcodes(units.graph, producer) - {"transpose", "reshape"} or len(reads) != 1:
            return None
        (operand,) = reads
    return operand if isinstance(operand, int) else None


def _is_written_so(units: UnitGraph, unit: Unit, source: int) -> bool:
    """Whether the map that computes a value runs just before, behind no barrier."""
    producer = units.producer.get(source)
    if producer is None or producer != unit.index - 1:
        return False
    return is_map(units.graph, units.units[producer].root)


def _computed_apart(units: UnitGraph, unit: Unit) -> Iterator[float]:
    program = units.graph.program
    root = program.equations[unit.root]
    if opcodes(units.graph, unit.root) & _COMPUTE_APART:
        size = program.values[root.outputs[0]].size_bytes
        for operand in root.inputs:
            if isinstance(operand, int) and operand not in unit.reads and size:
                yield program.values[operand].size_bytes / size


NOTHING_COPIED = CopiedOperands()
