"""The operands whose buffer a unit's result may share.

XLA gives a result the buffer of an operand only if the operator reads the operand directly, not
behind an `optimization_barrier`: `HeapSimulator` looks for a user of the instruction that defines
the buffer. Without a barrier, XLA may fuse the operator that computes the operand into the unit. It
does not if a library call computes the operand.
"""

from collections.abc import Iterator, Sequence

from kiwi.hlo.equation_kinds import BARRIER, LIBRARY_OPCODES, is_map
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.units import Unit

_WINDOWED = "reduce_window"


def overwritable(graph: HloGraph, unit: Unit) -> tuple[int, ...]:
    """Returns the operands of the result's size that an elementwise unit maps to its result.

    There are none if a matmul or convolution reads a result of more than two dimensions. The matmul
    then merges dimensions, XLA makes the unit write the merged shape, and buffers of different
    shapes are not shared.
    """
    if len(unit.outputs) != 1 or not _only_maps(graph, unit.equations):
        return ()
    (output,) = unit.outputs
    feeds_library = any(graph.opcodes[k] & LIBRARY_OPCODES for k in graph.program.readers[output])
    if len(graph.program.values[output].shape) > 2 and feeds_library:
        return ()
    return tuple(_mapped(graph, unit, output, unit.rule.results[0]))


def overwritable_by_operand(graph: HloGraph, unit: Unit) -> tuple[int, ...]:
    """Returns the values over which the operand of a unit's `reduce_window` may be written.

    XLA computes this operand in a kernel of its own. Empty for units without a `reduce_window`.
    """
    if _WINDOWED not in graph.opcodes[unit.root]:
        return ()
    if not _only_maps(graph, [equation for equation in unit.equations if equation != unit.root]):
        return ()
    dims_of = {value: dims for results in unit.rule.operator_results for value, dims in results}
    computed = [
        operand for operand in graph.program.equations[unit.root].reads if operand not in unit.reads
    ]
    return tuple(
        overwritten
        for operand in computed
        for overwritten in _mapped(graph, unit, operand, dims_of[operand])
    )


def is_of_library(graph: HloGraph, unit: Unit) -> bool:
    """Whether a library call computes a unit's result, so that XLA cannot fuse it into readers."""
    return bool(graph.opcodes[unit.root] & LIBRARY_OPCODES)


def _only_maps(graph: HloGraph, equations: Sequence[int]) -> bool:
    return all(
        is_map(graph, equation) and BARRIER not in graph.opcodes[equation] for equation in equations
    )


def _mapped(graph: HloGraph, unit: Unit, target: int, dims: object) -> Iterator[int]:
    """Yields the operands of a unit with the size of `target`, a value that the unit computes, and
    with its factors `dims`."""
    values = graph.program.values
    for value, read_dims in unit.rule.reads:
        if values[value].size_bytes == values[target].size_bytes and read_dims == dims:
            yield value
