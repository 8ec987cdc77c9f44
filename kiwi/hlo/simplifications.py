"""The simplifications of XLA that change what a plan has to decide."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from kiwi.hlo.program import Equation, Program
from kiwi.hlo.scatters_onto_zeros import scatter_onto_summand
from kiwi.hlo.transposed_products import swapped_product

Simplification = Callable[[Program, Equation], Equation | None]
"""A simplification takes a program and an equation, and returns the replacement of the equation.
None leaves the equation as it is. Equations that nothing reads any more stay in the program."""

SIMPLIFICATIONS: Mapping[str, Simplification] = {
    "transposed products": swapped_product,
    "scatters onto zeros": scatter_onto_summand,
}
"""The simplifications by name. `as_traced` parameters take the names of simplifications to leave
out."""


def simplified_once(program: Program, as_traced: Collection[str]) -> Program:
    """Returns the program after one pass of all simplifications except the ones in `as_traced`; the
    same object if nothing changes."""
    for name, simplification in SIMPLIFICATIONS.items():
        if name not in as_traced:
            program = _simplified(program, simplification)
    return program


def left_as_traced(program: Program) -> list[str]:
    """Returns the names of the simplifications that would change the program."""
    return [
        name
        for name, simplification in SIMPLIFICATIONS.items()
        if _simplified(program, simplification) is not program
    ]


def _simplified(program: Program, simplification: Simplification) -> Program:
    pairs = ((old.index, simplification(program, old)) for old in program.equations)
    changed = {index: equation for index, equation in pairs if equation is not None}
    if not changed:
        return program
    return replace(
        program, equations=tuple(changed.get(old.index, old) for old in program.equations)
    )
