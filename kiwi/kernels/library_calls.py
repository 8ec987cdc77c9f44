"""The maps behind a matmul or convolution: which of them the library computes in the same call, and
which of them need kernels of their own."""

from kiwi.hlo.equation_kinds import LIBRARY_OPCODES, is_map
from kiwi.hlo.units import Unit, UnitGraph

_ADDS = frozenset({"add", "add_any"})
_OF_LIBRARIES = _ADDS | {"convert_element_type", "copy", "reshape", "transpose"}
"""Primitives that cuBLAS and cuDNN compute with a matmul or convolution, and changes of layout."""


def maps_behind(units: UnitGraph, unit: Unit) -> bool:
    """Whether maps follow a matmul or convolution of the unit that the library does not compute.

    The library computes additions and conversions of its result.
    """
    return not _names_behind(units, unit) <= _OF_LIBRARIES


def adds_behind(units: UnitGraph, unit: Unit) -> bool:
    """Whether the unit adds to the result of its matmul or convolution."""
    return not _ADDS.isdisjoint(_names_behind(units, unit))


def _names_behind(units: UnitGraph, unit: Unit) -> set[str]:
    """Returns the primitives of the maps that depend on a matmul or convolution of the unit."""
    graph, reached, names = units.graph, set[int](), set[str]()
    for index in unit.equations:
        equation = graph.program.equations[index]
        reads_result = not reached.isdisjoint(equation.reads)
        if reads_result and is_map(graph, index):
            names.add(equation.name)
        if reads_result or graph.opcodes[index] & LIBRARY_OPCODES:
            reached.update(equation.outputs)
    return names
