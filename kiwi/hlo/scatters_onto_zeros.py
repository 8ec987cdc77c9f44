"""A scatter onto zeros that is added to something becomes a scatter onto that, as XLA makes it.

The gradient of a cross-entropy adds one element of each row, that of the label, to the
probabilities: JAX scatters it onto zeros as large as the logits, and adds both. XLA's algebraic
simplifier lets the scatter add to the probabilities in place. Beside bfloat16 logits of 1 GiB a
plan with zeros in float32 holds 4 GiB, and the compiled program 3.

Of scatters of more than one element into a row nothing is changed: where their indices are sharded
every device adds onto zeros of its own, and these are summed up.
"""

from collections.abc import Mapping
from dataclasses import replace

from kiwi.hlo.equation_kinds import sets_one_per_row
from kiwi.hlo.program import Equation, Program

_ADDS = frozenset({"add", "add_any"})


def without_scatters_onto_zeros(program: Program) -> Program:
    """The program with one equation for each scatter that only an addition reads; itself where
    there is none. Scatters and zeros are left unread."""
    kept = program.kept_values
    found: Mapping[int, Equation] = {
        equation.index: onto
        for equation in program.equations
        if equation.name in _ADDS and (onto := _onto_summand(program, equation, kept)) is not None
    }
    if not found:
        return program
    return replace(program, equations=tuple(found.get(e.index, e) for e in program.equations))


def _onto_summand(program: Program, addition: Equation, kept: frozenset[int]) -> Equation | None:
    """The scatter that adds to the other operand of an addition, which alone reads it."""
    for place, value in enumerate(addition.inputs):
        scatter = _producer(program, value)
        if scatter is None or not kept.isdisjoint(scatter.outputs):
            continue
        other, traced = addition.inputs[1 - place], addition.jaxpr_eqn.invars[1 - place]
        is_only_reader = program.readers[scatter.outputs[0]] == (addition.index,)
        is_onto_zeros = sets_one_per_row(scatter) and _are_zeros(program, scatter.inputs[0])
        if not (is_only_reader and is_onto_zeros and isinstance(other, int)):
            continue
        if scatter.loop != addition.loop:
            continue
        own = scatter.jaxpr_eqn
        return replace(
            addition,
            jaxpr_eqn=own.replace(
                invars=[traced, *own.invars[1:]], outvars=addition.jaxpr_eqn.outvars
            ),
            scope=scatter.scope,
            inputs=(other, *scatter.inputs[1:]),
        )
    return None


def _are_zeros(program: Program, value: object) -> bool:
    producer = _producer(program, value)
    scalar = None if producer is None else producer.filled_with
    return scalar is not None and scalar == 0


def _producer(program: Program, value: object) -> Equation | None:
    producer = program.values[value].producer if isinstance(value, int) else None
    return None if producer is None else program.equations[producer]
