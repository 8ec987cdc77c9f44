"""Equations that take every n-th element, or put n - 1 elements between neighbours."""

from kiwi.hlo.program import Equation
from kiwi.hlo.units import Unit, UnitGraph


def is_strided(equation: Equation) -> bool:
    """Whether an equation is a slice with a stride, or a pad that puts elements between others."""
    params = equation.jaxpr_eqn.params if equation.name in ("slice", "pad") else {}
    strides = params.get("strides") or ()
    between = (interior for _, _, interior in params.get("padding_config", ()))
    return any(stride != 1 for stride in strides) or any(between)


def is_strided_unit(units: UnitGraph, unit: Unit) -> bool:
    """Whether an equation of a unit is strided (`is_strided`)."""
    return any(is_strided(units.graph.program.equations[k]) for k in unit.equations)
