"""Equations that take every n-th element, or put elements so far apart."""

from kiwi.hlo.program import Equation
from kiwi.hlo.units import Unit, UnitGraph


def is_strided(equation: Equation) -> bool:
    """Whether an equation takes every n-th element, or puts elements so far apart."""
    params = equation.jaxpr_eqn.params if equation.name in ("slice", "pad") else {}
    strides = params.get("strides") or ()
    between = (interior for _, _, interior in params.get("padding_config", ()))
    return any(stride != 1 for stride in strides) or any(between)


def is_strided_unit(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit has such an equation."""
    return any(is_strided(units.graph.program.equations[k]) for k in unit.equations)
