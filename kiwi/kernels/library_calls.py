"""The part of a unit that a library computes with a matmul or convolution, and the part left to
other kernels.
"""

from kiwi.hlo.equation_kinds import LIBRARY_OPCODES, is_map
from kiwi.hlo.units import Unit, UnitGraph

_ADDS = frozenset({"add", "add_any"})
_OF_LIBRARIES = _ADDS | {"convert_element_type", "copy", "reshape", "transpose"}
"""Operators that cuBLAS and cuDNN compute with a matmul or convolution, and changes of shape."""


def maps_behind(units: UnitGraph, unit: Unit) -> bool:
    """Whether a matmul or convolution of the unit is followed by maps that the library does not
    compute: it adds, and writes its result in another type."""
    return not _names_behind(units, unit) <= _OF_LIBRARIES


def adds_behind(units: UnitGraph, unit: Unit) -> bool:
    """Whether something is added to the result of a unit's matmul or convolution."""
    return not _ADDS.isdisjoint(_names_behind(units, unit))


def _names_behind(units: UnitGraph, unit: Unit) -> set[str]:
    """The maps of a unit behind its matmuls and convolutions."""
    graph, reached, names = units.graph, set[int](), set[str]()
    for index in unit.equations:
        equation = graph.program.equations[index]
        reads_result = not reached.isdisjoint(equation.reads)
        if reads_result and is_map(graph, index):
            names.add(equation.name)
        if reads_result or graph.opcodes[index] & LIBRARY_OPCODES:
            reached.update(equation.outputs)
    return names
