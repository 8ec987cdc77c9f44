"""Units that reduce their operand along dimensions."""

from kiwi.hlo.units import Unit, UnitGraph

REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})
"""Primitives of reductions."""


def reduces(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit ends in a reduction."""
    return units.graph.program.equations[unit.root].name in REDUCTIONS
