"""Slices of every n-th element, and pads between elements: XLA:TPU fuses neither.

Observed with libtpu 0.0.42.1 in associative scans (`tests/hlo/test_strides.py`).
"""

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


def moved_beside_strides(units: UnitGraph, unit: Unit) -> tuple[tuple[int, int], ...]:
    """By place of a strided equation that takes what a unit reads, or yields its result, the bytes
    that go through memory between it and the rest of the unit.

    What XLA makes of those in between is not said: slices of broadcasts are broadcasts.
    """
    program = units.graph.program
    equations = [program.equations[k] for k in unit.equations]
    read, found = {value for value, _ in unit.rule.reads}, []
    for place, equation in enumerate(equations):
        if not is_strided(equation):
            continue
        is_first, is_last = equation.reads[0] in read, place == len(equations) - 1
        if is_first != is_last:
            (value, *_) = equation.outputs if is_first else equation.reads
            found.append((place, 2 * program.values[value].size_bytes))
    return tuple(found)
