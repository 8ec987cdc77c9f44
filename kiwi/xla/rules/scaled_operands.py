"""What XLA scales behind a matmul instead of in front of it.

XLA takes multiplications by a scalar from the operands of a matmul to its result where that is
smaller (`AlgebraicSimplifier::ScalarMultiplyReduction`), through changes of layout and of dtype but
through no barrier. An operand that something else reads as well is then computed twice, scaled and
not: in attention the gradient of the scores, of which the heap held two.
"""

from kiwi.hlo.graph import HloGraph
from kiwi.hlo.program import Literal
from kiwi.hlo.units import Unit

_SCALES = frozenset({"mul", "div"})
_PASSES = frozenset({"transpose", "reshape", "convert_element_type", "copy"})


def is_scaled(graph: HloGraph, unit: Unit) -> bool:
    """Whether a unit's result is a product with a scalar constant."""
    program = graph.program

    def is_scalar(operand: int | Literal) -> bool:
        producer = None if isinstance(operand, Literal) else program.values[operand].producer
        filled = None if producer is None else program.equations[producer].filled_with
        return isinstance(operand, Literal) or filled is not None

    index: int | None = unit.root
    while index is not None and index in unit.equations:
        equation = program.equations[index]
        if equation.name in _SCALES:
            return any(map(is_scalar, equation.inputs))
        if equation.name not in _PASSES:
            return False
        (operand,) = equation.reads
        index = program.values[operand].producer
    return False
