"""XLA:GPU reduces rows in the kernel of the maps that read the rows again.

A softmax and a normalisation reduce rows and read the same rows again. The maximum, the sum of
exponentials, the mean and the variance are computed in the kernel that writes the result. This
kernel reads the rows once, and the reduced values are never in memory. The gradients of softmax and
normalisation reduce rows in the same way. Rows run along the last dimension, and have up to
`LONGEST_ROW` elements. The rule holds for GPUs that multiply in tf32.

Costly functions of the rows are not computed twice: if the backward pass also reads the sum of a
softmax's exponentials, a separate kernel computes the sum and the maximum. A reduction of the
columns of normalised rows, such as the gradient of a normalisation's scale, reads the normalised
rows from memory: the kernel that reduces the rows writes them first.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod

import jax

from kiwi.hlo.equation_kinds import WORTH_KEEPING, is_map
from kiwi.hlo.program import Value
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.kernel import MovedBeside, RowReduction
from kiwi.kernels.reductions import REDUCTIONS
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array

LONGEST_ROW = 16_384
"""The elements of the longest rows that the kernel of their readers reduces. Longer rows are
reduced by a separate kernel."""

MASKED_BYTES = 6
"""The least bytes per element at which a reduction of rows under a mask is priced. The exception is
a sum that is kept for the backward pass: it costs no bytes, because its kernel has better tiles."""


def reduced_for_readers(units: UnitGraph) -> Mapping[int, RowReduction]:
    """Returns, by index of the unit, the reductions of rows that run in the kernel of the maps that
    read the rows again. Readers in another phase or loop do not count as such maps."""
    reductions: dict[int, RowReduction] = {}
    for unit in reversed(units.units):  # readers first
        rows = _rows(units, unit)
        if rows is None:
            continue
        readers = [units.units[reader] for reader in units.readers.get(unit.outputs[0], ())]
        near = [
            reader for reader in readers if (reader.phase, reader.loop) == (unit.phase, unit.loop)
        ]
        if not (
            near and all(_reads_again(units, reader, unit, rows, reductions) for reader in near)
        ):
            continue
        dims = dict(unit.rule.operator_operands[-1])[rows.index]
        read, last = _rows_read_again(units, near[0], unit, rows)[0], near[0].index
        if last in reductions and not reductions[last].is_summed_once:
            last = reductions[last].reader
        costly = [index for index in unit.equations if units.graph.opcodes[index] & WORTH_KEEPING]
        is_summed_once = bool(costly) and len(near) < len(readers)
        reduction = RowReduction(frozenset(dims[-1]), read, last, is_summed_once)
        if any(_is_shared(units, index, rows) for index in unit.equations):
            reduction = _masked(reduction, units.graph.program.values[read], _size(rows))
        reductions[unit.index] = reduction
    return reductions


def _masked(reduction: RowReduction, rows: Value, elements: int) -> RowReduction:
    """Returns the reduction with the extra cost of rows that share a mask.

    - `rows`: the value whose rows are read again.
    - `elements`: the number of elements of the rows.
    """
    more_bytes = max(0, MASKED_BYTES - rows.itemsize)
    return replace(
        reduction,
        masked_elements=elements,
        masked_once_bytes=-rows.itemsize if reduction.is_summed_once else more_bytes,
        masked_again_bytes=2 * more_bytes,
    )


def written_rows(
    units: UnitGraph, unit: Unit, reduced: Mapping[int, RowReduction]
) -> tuple[MovedBeside, ...]:
    """Returns the traffic of the rows that a unit's final reduction of columns reads from memory.

    There is traffic only if the unit reads a reduction of the same rows that runs in the kernel of
    its readers. That kernel then writes the rows before they are reduced along columns.

    - `reduced`: the result of `reduced_for_readers`.
    """
    program, place = units.graph.program, len(unit.equations) - 1
    root = program.equations[unit.root]
    if root.name not in REDUCTIONS or _rows(units, unit) is not None:
        return ()
    summed = program.values[root.reads[0]]
    read = {units.producer[value] for value in unit.reads if value in units.producer}
    is_of_rows = any(reduced[producer].rows in unit.reads for producer in read & reduced.keys())
    return (MovedBeside(place, 2 * summed.size_bytes),) if is_of_rows else ()


def _rows(units: UnitGraph, unit: Unit) -> Value | None:
    """Returns the value that a unit of maps reduces along the last dimension only; None for other
    units, and for rows longer than `LONGEST_ROW`."""
    graph, program = units.graph, units.graph.program
    root = program.equations[unit.root]
    if root.name not in REDUCTIONS or len(unit.outputs) != 1:
        return None
    (operand,) = root.reads
    rows = program.values[operand]
    axes = root.jaxpr_eqn.params["axes"]
    is_short = tuple(axes) == (len(rows.shape) - 1,) and rows.shape[-1] <= LONGEST_ROW
    return rows if is_short and all(is_map(graph, index) for index in unit.equations[:-1]) else None


def _is_shared(units: UnitGraph, index: int, rows: Value) -> bool:
    """Returns whether an equation broadcasts a value with several rows, but fewer than `rows`, to
    the shape of `rows`, as a causal mask for all heads."""
    program = units.graph.program
    equation = program.equations[index]
    if equation.name != "broadcast_in_dim" or not equation.reads:
        return False
    operand, result = (program.values[value] for value in (equation.reads[0], equation.outputs[0]))
    is_of_rows = result.shape == rows.shape and operand.shape[-1:] == rows.shape[-1:]
    return is_of_rows and rows.shape[-1] < _size(operand) < _size(rows)


def _reads_again(
    units: UnitGraph, reader: Unit, unit: Unit, rows: Value, found: Collection[int]
) -> bool:
    """Returns whether a reader reads the rows that a unit reduces, and either computes a value of
    their size by maps, or reduces rows in the kernel of its readers (`found`)."""
    values = units.graph.program.values
    if not _rows_read_again(units, reader, unit, rows):
        return False
    if _rows(units, reader) is not None:
        return reader.index in found
    is_of_maps = all(is_map(units.graph, index) for index in reader.equations)
    return is_of_maps and any(_size(values[output]) == _size(rows) for output in reader.outputs)


def _rows_read_again(units: UnitGraph, reader: Unit, unit: Unit, rows: Value) -> list[int]:
    """Returns the values of the size of `rows` that both the reader and the unit read."""
    values = units.graph.program.values
    shared = [value for value in unit.reads if value in reader.reads]
    return [value for value in shared if _size(values[value]) == _size(rows)]


def _size(value: Value) -> int:
    return prod(value.shape)


def _apply(graph: KernelGraph) -> KernelGraph:
    if "tf32" not in graph.hardware.flops_per_second:
        return graph
    units = graph.units
    reduced = reduced_for_readers(units)
    written = {unit.index: written_rows(units, unit, reduced) for unit in units.units}
    return graph.stating("rows", reduced).adding("moved_beside", written)


def _softmax(x: jax.Array) -> jax.Array:
    return jax.nn.softmax(2.0 * x) + 1.0


WITNESS = Witness(
    says="The softmax, and the maps around it, are one kernel.",
    example=Example(_softmax, (array(64, LONGEST_ROW),)),
    shows=lambda module: len(module.kernels) == 1,
    control=Example(_softmax, (array(64, LONGEST_ROW + 1),)),
)


RULE = Rule(
    name="softmax_rows",
    does="What a softmax or a normalisation reduces along the last dimension is reduced in the "
    "kernel that reads the rows again.",
    component="SoftmaxRewriterTriton",
    observed="jax 0.10.2, H100: rows of 1,000 to 128,256 elements in float32 and bfloat16",
    evidence=(
        "tests/xla/gpu/test_compiler.py",
        "tests/targets/test_softmax_rows.py",
        "benchmarks/fidelity",
    ),
    witness=WITNESS,
    apply=_apply,
    limits="A mean in bfloat16 that is subtracted, as `jnp.var` does beside `jnp.mean`, is five "
    "kernels instead of one.",
)
