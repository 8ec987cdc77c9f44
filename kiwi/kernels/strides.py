"""Units that take every n-th element, or put n - 1 elements between neighbours."""

from kiwi.hlo.equation_kinds import is_strided
from kiwi.hlo.units import Unit, UnitGraph


def is_strided_unit(units: UnitGraph, unit: Unit) -> bool:
    """Whether an equation of a unit is strided (`is_strided`)."""
    return any(is_strided(units.graph.program.equations[k]) for k in unit.equations)
