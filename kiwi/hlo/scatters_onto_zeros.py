"""XLA's simplification of a scatter onto zeros whose result is added to a tensor: the scatter adds
to the tensor directly.

The gradient of a cross-entropy adds one element to each row of the probabilities, at the label. JAX
scatters these elements onto zeros as large as the logits, and adds the result to the probabilities.
XLA's algebraic simplifier lets the scatter add to the probabilities in place. So it saves an array
of the size of the logits.

Scatters of more than one element into a row stay. If their indices are sharded, every device
scatters onto zeros of its own, and the results are summed over devices.
"""

from dataclasses import replace

from kiwi.hlo.equation_kinds import sets_one_per_row
from kiwi.hlo.program import Equation, Program

_ADDS = frozenset({"add", "add_any"})


def scatter_onto_summand(program: Program, equation: Equation) -> Equation | None:
    """Returns the scatter that replaces an addition; None for equations that are not replaced.

    One operand of the addition must be a scatter onto zeros that only the addition reads. The new
    scatter adds to the other operand. Nothing reads the old scatter and its zeros any more.
    """
    if equation.name not in _ADDS:
        return None
    traced = equation.jaxpr_eqn
    for place, value in enumerate(equation.inputs):
        scatter, summand = program.read_only_by(equation, value), equation.inputs[1 - place]
        if scatter is None or not sets_one_per_row(scatter) or not isinstance(summand, int):
            continue
        if _are_zeros(program, scatter.inputs[0]):
            scatter_eqn = scatter.jaxpr_eqn
            invars = [traced.invars[1 - place], *scatter_eqn.invars[1:]]
            return replace(
                equation,
                jaxpr_eqn=scatter_eqn.replace(invars=invars, outvars=traced.outvars),
                scope=scatter.scope,
                inputs=(summand, *scatter.inputs[1:]),
            )
    return None


def _are_zeros(program: Program, value: object) -> bool:
    producer = program.values[value].producer if isinstance(value, int) else None
    scalar = None if producer is None else program.equations[producer].filled_with
    return scalar is not None and scalar == 0
