"""The buffers that XLA holds for a scan that is left whole.

A loop writes its stacked results slice by slice over zeros. These depend on nothing, so that they
are there from the start of the step (`benchmarks/fidelity`, lstm, jax 0.10.2).
"""

from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.solver.problem import Interval


def zeros_of_stacked_results(
    units: UnitGraph, unit: Unit, result_bytes: int
) -> tuple[Interval, ...]:
    """Until the scan runs, whose result takes their place; nothing for another unit."""
    if units.graph.program.equations[unit.root].name != "scan" or unit.index == 0:
        return ()
    return (Interval(0, unit.index, _stacked_bytes(units, unit, result_bytes)),)


def _stacked_bytes(units: UnitGraph, unit: Unit, result_bytes: int) -> int:
    """The part of a scan's results behind its carry."""
    program = units.graph.program
    equation = program.equations[unit.root]
    sizes = [program.values[o].size_bytes for o in unit.outputs]
    is_stacked = equation.stacked_outputs
    stacked = sum(size for size, s in zip(sizes, is_stacked, strict=True) if s)
    return result_bytes * stacked // max(1, sum(sizes))
