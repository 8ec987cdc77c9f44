"""What XLA's algebraic simplifier makes of a program, where planning has to know it."""

from collections.abc import Callable, Collection, Mapping

from kiwi.hlo.program import Program
from kiwi.hlo.scatters_onto_zeros import without_scatters_onto_zeros
from kiwi.hlo.transposed_products import without_transposed_products

SIMPLIFICATIONS: Mapping[str, Callable[[Program], Program]] = {
    "transposed products": without_transposed_products,
    "scatters onto zeros": without_scatters_onto_zeros,
}
"""By what is left as it was traced without them. Each returns the program itself where there is
nothing to change; what nothing reads any longer stays."""


def simplified_once(program: Program, as_traced: Collection[str]) -> Program:
    """The program after all of them but for those in `as_traced`."""
    for name, simplification in SIMPLIFICATIONS.items():
        if name not in as_traced:
            program = simplification(program)
    return program


def left_as_traced(program: Program) -> list[str]:
    """What a program has that simplifications would change."""
    return [name for name, change in SIMPLIFICATIONS.items() if change(program) is not program]
