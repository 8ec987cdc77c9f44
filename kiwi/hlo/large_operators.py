"""What communicates ahead of, or behind, all that takes long to compute.

Large are the units that compute matmuls, convolutions or kernels. A value is *early* if no large
unit is behind it, as parameters are, and *late* if none follows from it, as gradients are: what is
gathered of the former and summed up of the latter waits for nothing, and nothing waits for it.
"""

import functools
from collections.abc import Mapping

from kiwi.hlo.equation_kinds import LIBRARY_OPCODES
from kiwi.hlo.loops import CARRY
from kiwi.hlo.units import Unit, UnitGraph


@functools.lru_cache(maxsize=4)
def large_units(units: UnitGraph) -> tuple[bool, ...]:
    """By unit, whether it is large; kept while a step is planned, as the others."""
    graph = units.graph
    return tuple(
        any(
            graph.opcodes[e] & LIBRARY_OPCODES or graph.program.equations[e].is_kernel
            for e in unit.equations
        )
        for unit in units.units
    )


@functools.lru_cache(maxsize=4)
def early_values(units: UnitGraph) -> Mapping[int, bool]:
    """By value, whether it is early."""
    program, is_large = units.graph.program, large_units(units)
    found = dict.fromkeys((*program.arguments, *program.constants), True)
    for unit in units.units:
        is_early = units.border(unit) != CARRY and not is_large[unit.index]
        is_early = is_early and all(found[value] for value in unit.reads)
        found.update(dict.fromkeys(unit.outputs, is_early))
    return found


@functools.lru_cache(maxsize=4)
def late_values(units: UnitGraph) -> Mapping[int, bool]:
    """By value, whether it is late."""
    program, is_large, found = units.graph.program, large_units(units), dict[int, bool]()
    for unit in reversed(units.units):
        for value in unit.outputs:
            readers = [units.units[r] for r in units.readers.get(value, ())]
            is_late = value not in program.next_values
            is_late = is_late and not any(is_large[r.index] for r in readers)
            found[value] = is_late and all(found[o] for r in readers for o in r.outputs)
    return found


def reduces_late(units: UnitGraph, unit: Unit) -> bool:
    """Whether all that a unit yields is late."""
    found = late_values(units)
    return all(found[value] for value in unit.outputs)
