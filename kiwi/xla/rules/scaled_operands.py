"""What XLA scales behind a matmul instead of in front of it.

XLA takes multiplications by a scalar from the operands of a matmul to its result where that is
smaller (`AlgebraicSimplifier::ScalarMultiplyReduction`), through changes of layout and of dtype but
through no barrier. An operand that something else reads as well is then computed twice, scaled and
not: in attention the gradient of the scores, of which the heap held two.
"""

from kiwi.hlo.graph import HloGraph
from kiwi.hlo.program import Equation, Literal, Program
from kiwi.hlo.units import Unit

_SCALES = frozenset({"mul", "div"})
_PASSES = frozenset({"transpose", "reshape", "convert_element_type", "copy"})


def is_scaled(graph: HloGraph, unit: Unit) -> bool:
    """Whether a unit's result is a product with a scalar constant."""
    program = graph.program
    index: int | None = unit.root
    while index is not None and index in unit.equations:
        equation = program.equations[index]
        if equation.name in _SCALES:
            return any(_is_scalar(program, operand) for operand in equation.inputs)
        if equation.name not in _PASSES:
            return False
        index = _producer(program, equation)
    return False


def _is_scalar(program: Program, operand: int | Literal) -> bool:
    if isinstance(operand, Literal):
        return True
    producer = program.values[operand].producer
    return producer is not None and program.equations[producer].filled_with is not None


def _producer(program: Program, equation: Equation) -> int | None:
    """The equation that computes the only operand."""
    (operand,) = equation.reads
    return program.values[operand].producer
