"""The phase of each equation: forward, backward or update.

1. An equation with `transpose(jvp` in its name stack is backward. (`transpose` alone may come from
   the `transpose` primitive.)
2. Otherwise, an equation that reads a backward result, directly or through others, is update.
3. Otherwise, an equation with `jvp(` in its name stack is forward. So is an equation whose result
   such an equation reads, directly or through others.
4. Otherwise, the equation is update if the program has backward equations: for example, the
   optimizer decays its moments before it adds the gradient. It is forward if there are none.
"""

from collections.abc import Sequence

from kiwi.hlo.graph import Phase
from kiwi.hlo.program import Equation, Program


def phases(program: Program) -> tuple[Phase, ...]:
    """Returns the phase of each equation."""
    stacks = [equation.name_stack for equation in program.equations]
    is_backward = ["transpose(jvp" in stack for stack in stacks]
    after_backward = _reached(program.equations, is_backward)
    is_forward = ["jvp(" in stack for stack in stacks]
    before_forward = _reached(program.equations, is_forward, backward=True)
    default = Phase.UPDATE if any(is_backward) else Phase.FORWARD
    phase_of_equation = []
    for index in range(len(stacks)):
        if is_backward[index]:
            phase_of_equation.append(Phase.BACKWARD)
        elif after_backward[index]:
            phase_of_equation.append(Phase.UPDATE)
        else:
            phase_of_equation.append(Phase.FORWARD if before_forward[index] else default)
    return tuple(phase_of_equation)


def _reached(
    equations: Sequence[Equation], seeds: Sequence[bool], *, backward: bool = False
) -> list[bool]:
    """Returns, for each equation, whether it is a seed or depends on one.

    - `seeds`: for each equation, whether it is a seed.
    - `backward`: whether to follow reads in the other direction: to equations on which a seed
      depends.
    """
    is_reached, marked = list(seeds), set[int]()
    for equation in reversed(equations) if backward else equations:
        sources, targets = equation.reads, equation.outputs
        if backward:
            sources, targets = targets, sources
        is_reached[equation.index] |= not marked.isdisjoint(sources)
        if is_reached[equation.index]:
            marked.update(targets)
    return is_reached
