"""The simplifications of XLA that planning has to know."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from kiwi.hlo.program import Equation, Program
from kiwi.hlo.scatters_onto_zeros import scatter_onto_summand
from kiwi.hlo.transposed_products import swapped_product

Simplification = Callable[[Program, Equation], Equation | None]
"""The replacement of an equation; None to leave it. Equations that nothing reads any more stay in
the program."""

SIMPLIFICATIONS: Mapping[str, Simplification] = {
    "transposed products": swapped_product,
    "scatters onto zeros": scatter_onto_summand,
}
"""The simplifications, by the name under which `as_traced` leaves one out."""


def simplified_once(program: Program, as_traced: Collection[str]) -> Program:
    """The program after all simplifications except those in `as_traced`; itself if
    nothing changes."""
    for name, simplification in SIMPLIFICATIONS.items():
        if name not in as_traced:
            program = _simplified(program, simplification)
    return program


def left_as_traced(program: Program) -> list[str]:
    """The names of the simplifications that would change the program."""
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
