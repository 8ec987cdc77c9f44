"""What XLA's algebraic simplifier makes of a program, where planning has to know it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from kiwi.hlo.program import Equation, Program
from kiwi.hlo.scatters_onto_zeros import scatter_onto_summand
from kiwi.hlo.transposed_products import swapped_product

Simplification = Callable[[Program, Equation], Equation | None]
"""What an equation of a program becomes; None where it stays. What nothing reads any longer stays,
too."""

SIMPLIFICATIONS: Mapping[str, Simplification] = {
    "transposed products": swapped_product,
    "scatters onto zeros": scatter_onto_summand,
}
"""By what is left as it was traced without them."""


def simplified_once(program: Program, as_traced: Collection[str]) -> Program:
    """The program after all of them but for those in `as_traced`; itself if nothing changes."""
    for name, simplification in SIMPLIFICATIONS.items():
        if name not in as_traced:
            program = _simplified(program, simplification)
    return program


def left_as_traced(program: Program) -> list[str]:
    """What a program has that simplifications would change."""
    return [n for n, each in SIMPLIFICATIONS.items() if _simplified(program, each) is not program]


def _simplified(program: Program, simplification: Simplification) -> Program:
    pairs = ((e.index, simplification(program, e)) for e in program.equations)
    changed = {index: equation for index, equation in pairs if equation is not None}
    if not changed:
        return program
    return replace(program, equations=tuple(changed.get(e.index, e) for e in program.equations))
