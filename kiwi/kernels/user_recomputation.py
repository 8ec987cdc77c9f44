"""Recomputation by the user's own `jax.checkpoint`, in programs that keep it separate.

JAX gives recomputed equations a name scope. Some equations in this scope are computed only once:
factors of derivatives that the forward pass does not need. An equation in the scope counts as a
recomputation if the forward pass has an equation with the same primitive, source line, and shapes
and dtypes of results.
"""

import functools
from collections.abc import Hashable

from kiwi.hlo.graph import Phase
from kiwi.hlo.program import Equation, Program
from kiwi.hlo.units import UnitGraph

_SCOPE = "rematted_computation"


@functools.lru_cache(maxsize=4)
def units_computed_again(units: UnitGraph) -> frozenset[int]:
    """Returns the indices of the units that repeat computations of the forward pass; empty if the
    program does not keep the user's recomputation separate."""
    program = units.graph.program
    first_keys = _first(units)
    return (
        frozenset(
            unit.index
            for unit in units.units
            if _is_again(program.equations[unit.root]) and _key(program, unit.root) in first_keys
        )
        if program.keeps_checkpoints
        else frozenset()
    )


@functools.lru_cache(maxsize=4)
def dropped_by_user(units: UnitGraph) -> frozenset[int]:
    """Returns the indices of the forward units whose results the user's checkpoints recompute.

    The recomputation may be a unit, or fused with its readers. Empty if the program does not keep
    the user's recomputation separate.
    """
    program = units.graph.program
    if not program.keeps_checkpoints:
        return frozenset()
    again = {_key(program, equation.index) for equation in program.equations if _is_again(equation)}
    return frozenset(
        unit.index
        for unit in units.units
        if unit.phase is Phase.FORWARD
        and _key(program, unit.root) in again
        and not _is_again(program.equations[unit.root])
    )


def _first(units: UnitGraph) -> set[Hashable]:
    program = units.graph.program
    return {
        _key(program, equation.index)
        for equation in program.equations
        if units.graph.phase_of(equation.index) is Phase.FORWARD and not _is_again(equation)
    }


def _is_again(equation: Equation) -> bool:
    return _SCOPE in equation.name_stack and not equation.is_border


def _key(program: Program, index: int) -> Hashable:
    equation = program.equations[index]
    types = tuple(
        (program.values[output].shape, program.values[output].dtype) for output in equation.outputs
    )
    return equation.name, equation.source_line, types
