"""The phase of each equation: forward, backward or update.

1. A name stack with `transpose(jvp` is backward. (The `transpose` primitive alone also says
   `transpose`.)
2. Otherwise, an equation that reads, directly or not, something backward is update.
3. Otherwise, one with `jvp(` in its name stack, or that such an equation reads, directly or
   not, is forward.
4. Otherwise it is update if the program has a backward part at all (the optimizer's own
   moments, decayed before the gradient is added), else forward.
"""

from kiwi.hlo.graph import Phase
from kiwi.hlo.program import Program


def phases(program: Program) -> tuple[Phase, ...]:
    """The phase of each equation."""
    stacks = [equation.name_stack for equation in program.equations]
    is_backward = ["transpose(jvp" in stack for stack in stacks]
    after_backward = _after(program, is_backward)
    before_forward = _before(program, ["jvp(" in stack for stack in stacks])
    rest = Phase.UPDATE if any(is_backward) else Phase.FORWARD
    found = []
    for index in range(len(stacks)):
        if is_backward[index]:
            found.append(Phase.BACKWARD)
        elif after_backward[index]:
            found.append(Phase.UPDATE)
        else:
            found.append(Phase.FORWARD if before_forward[index] else rest)
    return tuple(found)


def _after(program: Program, seeds: list[bool]) -> list[bool]:
    """The seeds and all equations that read from them, directly or not."""
    found = list(seeds)
    marked = [False] * len(program.values)
    for equation in program.equations:
        found[equation.index] |= any(marked[v] for v in equation.reads)
        for output in equation.outputs:
            marked[output] = found[equation.index]
    return found


def _before(program: Program, seeds: list[bool]) -> list[bool]:
    """The seeds and all equations that they read from, directly or not."""
    found = list(seeds)
    wanted = [False] * len(program.values)
    for equation in reversed(program.equations):
        found[equation.index] |= any(wanted[o] for o in equation.outputs)
        if found[equation.index]:
            for value in equation.reads:
                wanted[value] = True
    return found
