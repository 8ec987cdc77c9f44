"""Reductions over rows that are computed in the kernel of their readers.

A softmax and a normalisation reduce rows and read the same rows again: the maximum, the sum of
exponentials, the mean and the variance go to the kernel that writes the result. XLA:GPU makes one
kernel of it (`SoftmaxRewriterTriton`, from compute capability 8.0 on): it reads the rows once, and
what it reduces is never in memory. Their gradients reduce rows in the same way. Rows are those
along the last dimension, of up to `LONGEST_ROW` elements (jax 0.10.2, H100: softmax, layer and RMS
normalisation of 1,000 to 128,256 elements in float32 and bfloat16, the models of
`benchmarks/fidelity` and their gradients; `tests/xla/gpu/test_compiler.py` holds it).

Costly functions of the rows are not computed twice: the sum of a softmax's exponentials that the
backward pass reads as well is a kernel of its own, with the maximum. What sums columns of
normalised rows, as the gradient of a normalisation's scale, reads them from memory: the kernel that
reduces rows writes them there first.

Known imperfection: what computes a mean in bfloat16 and subtracts it, as `jnp.var` does beside
`jnp.mean`, is five kernels instead of one.
"""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from kiwi.hlo.equation_kinds import WORTH_KEEPING, is_map
from kiwi.hlo.program import Value
from kiwi.hlo.units import Unit, UnitGraph

LONGEST_ROW = 16_384
"""Elements of the longest rows that are reduced so."""

REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})


@dataclass(frozen=True)
class RowReduction:
    """What a unit reduces in the kernel of its readers.

    - `factors`: those that it reduces.
    - `rows`: the value whose rows the readers go over again.
    - `reader`: the unit of maps that ends the kernel.
    - `is_summed_once`: whether it reduces costly functions of them for readers of another phase as
      well, in a kernel of its own. If it is recomputed for these, either pass reduces them in the
      kernel of its readers; if `reader` is recomputed, too, these have two kernels (`repeats`).
    - `masked_elements`: of the rows, where they take in what several share, such as a causal mask
      for all heads: XLA:GPU's kernels go over many heads at once, and wait. Else 0.
    """

    factors: frozenset[int]
    rows: int
    reader: int
    is_summed_once: bool
    masked_elements: int

    @property
    def repeats(self) -> bool:
        """Whether each kernel of its readers reduces the rows for itself where two have some
        (`kiwi.emit.reduced_again`); under a mask that takes longer than a kernel of its own."""
        return self.is_summed_once and not self.masked_elements


@functools.lru_cache(maxsize=4)
def reduced_for_readers(units: UnitGraph) -> Mapping[int, RowReduction]:
    """By unit, those that reduce rows for the maps that read them again; kept while a step is
    planned. A reader in another phase computes it again in a kernel of its own."""
    found: dict[int, RowReduction] = {}
    for unit in reversed(units.units):  # readers first
        rows = _rows(units, unit)
        if rows is None:
            continue
        readers = [units.units[r] for r in units.readers.get(unit.outputs[0], ())]
        near = [r for r in readers if (r.phase, r.loop) == (unit.phase, unit.loop)]
        if not (near and all(_reads_again(units, r, unit, rows, found) for r in near)):
            continue
        dims = dict(unit.rule.operator_operands[-1])[rows.index]
        read, last = _rows_read_again(units, near[0], unit, rows)[0], near[0].index
        if last in found and not found[last].is_summed_once:
            last = found[last].reader
        costly = [k for k in unit.equations if units.graph.opcodes[k] & WORTH_KEEPING]
        is_summed_once = bool(costly) and len(near) < len(readers)
        masked = _size(rows) if any(_is_shared(units, k, rows) for k in unit.equations) else 0
        found[unit.index] = RowReduction(frozenset(dims[-1]), read, last, is_summed_once, masked)
    return found


def written_rows(units: UnitGraph, unit: Unit) -> tuple[tuple[int, int], ...]:
    """By place of a reduction of columns that ends a unit, the bytes of what it sums that go
    through memory, where the unit reduces rows first."""
    program, place = units.graph.program, len(unit.equations) - 1
    root = program.equations[unit.root]
    if root.name not in REDUCTIONS or _rows(units, unit) is not None:
        return ()
    found = reduced_for_readers(units)
    summed = program.values[root.reads[0]]
    read = {units.producer[value] for value in unit.reads if value in units.producer}
    is_of_rows = any(found[producer].rows in unit.reads for producer in read & found.keys())
    return ((place, 2 * summed.size_bytes),) if is_of_rows else ()


def _rows(units: UnitGraph, unit: Unit) -> Value | None:
    """What a unit of maps reduces along the last dimension only; None of others."""
    graph, program = units.graph, units.graph.program
    root = program.equations[unit.root]
    if root.name not in REDUCTIONS or len(unit.outputs) != 1:
        return None
    (operand,) = root.reads
    rows = program.values[operand]
    axes = root.jaxpr_eqn.params["axes"]
    is_short = tuple(axes) == (len(rows.shape) - 1,) and rows.shape[-1] <= LONGEST_ROW
    return rows if is_short and all(is_map(graph, k) for k in unit.equations[:-1]) else None


def _is_shared(units: UnitGraph, index: int, rows: Value) -> bool:
    """Whether an equation broadcasts, to the shape of rows, several rows that are fewer."""
    program = units.graph.program
    equation = program.equations[index]
    if equation.name != "broadcast_in_dim" or not equation.reads:
        return False
    given, result = (program.values[v] for v in (equation.reads[0], equation.outputs[0]))
    is_of_rows = result.shape == rows.shape and given.shape[-1:] == rows.shape[-1:]
    return is_of_rows and rows.shape[-1] < _size(given) < _size(rows)


def _reads_again(
    units: UnitGraph, reader: Unit, unit: Unit, rows: Value, found: Collection[int]
) -> bool:
    """Whether a reader goes over the rows that a unit reduces, and has them in its result."""
    values = units.graph.program.values
    if not _rows_read_again(units, reader, unit, rows):
        return False
    if _rows(units, reader) is not None:
        return reader.index in found
    is_of_maps = all(is_map(units.graph, k) for k in reader.equations)
    return is_of_maps and any(_size(values[o]) == _size(rows) for o in reader.outputs)


def _rows_read_again(units: UnitGraph, reader: Unit, unit: Unit, rows: Value) -> list[int]:
    """The values as large as the rows that both a reader and the unit read."""
    values = units.graph.program.values
    shared = [value for value in unit.reads if value in reader.reads]
    return [value for value in shared if _size(values[value]) == _size(rows)]


def _size(value: Value) -> int:
    return prod(value.shape)
