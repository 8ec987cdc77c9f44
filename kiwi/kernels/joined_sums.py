"""Partial sums that the compiler joins before devices exchange them.

*Combined*: sums that no matmul of their iteration waits for are exchanged together, and share the
latency. An accumulated gradient is such a sum: the next iteration only adds to it.

*Added first*: if partial sums are only added to each other, each device adds its summands, and one
sum is exchanged for all of them (XLA's `AllReduceReassociate`). The gradients of a parameter that a
step uses several times are an example.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Mapping

from kiwi.hlo.large_operators import (
    large_ones,
    large_units,
    multiplies,
    share_of_bytes,
    without_dependents,
)
from kiwi.hlo.units import Unit, UnitGraph

_ADDS = frozenset({"add", "add_any"})


def share_of_sums(units: UnitGraph, unit: Unit, *, adds_first: bool) -> float:
    """Returns the share of a unit's results in the bytes that are combined with them.

    These are the results of all large units in the unit's loop, or outside of loops, on which no
    matmul of the iteration depends. The share is 1 if a matmul depends on the unit's results.

    - `adds_first`: whether partial sums are added before they are exchanged (`added_first`).
    """
    read_late = _read_late(units)
    if not all(read_late[value] for value in unit.outputs):
        return 1.0
    return share_of_bytes(units, unit.outputs, _late_bytes(units, adds_first)[unit.loop])


def added_first(units: UnitGraph, unit: Unit) -> int:
    """Returns the number of units, this one included, whose partial sums are only added to each
    other and then exchanged as one sum; 1 if the unit's sums are exchanged alone."""
    return max(1, _summands(units)[_total(units, unit)]) if _sums_up(unit) else 1


@functools.lru_cache(maxsize=4)
def _read_late(units: UnitGraph) -> Mapping[int, bool]:
    """Returns, by value, whether no matmul of its iteration depends on it.

    At first, this is assumed for all values that iterations hand on. If a matmul of the next
    iteration depends on a carry, the value handed on for it counts as multiplied. The search is
    repeated until nothing changes.
    """
    program = units.graph.program
    of_matmuls, multiplied = _multiplied(units), frozenset[int]()
    while True:
        late = without_dependents(
            units, multiplied, lambda reader, value: value in of_matmuls[reader]
        )
        further = {
            carry.next
            for loop in program.loops
            for carry in loop.carries
            if isinstance(carry.next, int) and not late.get(carry.current, True)
        }
        if further <= multiplied:
            return late
        multiplied |= further


@functools.lru_cache(maxsize=4)
def _multiplied(units: UnitGraph) -> tuple[frozenset[int], ...]:
    """Returns, for each unit, the values on which its matmuls depend. A value that is only added to
    their results is not included."""
    return tuple(
        _operands(units, unit) if is_large else frozenset()
        for unit, is_large in zip(units.units, large_units(units), strict=True)
    )


def _operands(units: UnitGraph, unit: Unit) -> frozenset[int]:
    equations, needed = units.graph.program.equations, set[int]()
    for index in reversed(unit.equations):
        if multiplies(units.graph, index) or not needed.isdisjoint(equations[index].outputs):
            needed.update(equations[index].reads)
    return frozenset(needed)


@functools.lru_cache(maxsize=4)
def _late_bytes(units: UnitGraph, adds_first: bool) -> Mapping[int | None, float]:
    read_late, total_bytes = _read_late(units), defaultdict[int | None, float](float)
    for unit in large_ones(units):
        if all(read_late[value] for value in unit.outputs):
            values = (units.graph.program.values[value] for value in unit.outputs)
            summands = added_first(units, unit) if adds_first else 1
            total_bytes[unit.loop] += sum(value.size_bytes for value in values) / summands
    return total_bytes


def _sums_up(unit: Unit) -> bool:
    return len(unit.outputs) == 1 and bool(unit.rule.reduction)


@functools.lru_cache(maxsize=4)
def _summands(units: UnitGraph) -> Counter[int]:
    """Returns, by value, the number of units with partial sums whose results are added to it."""
    return Counter(_total(units, unit) for unit in units.units if _sums_up(unit))


def _total(units: UnitGraph, unit: Unit) -> int:
    """Returns the last sum in a chain of additions that begins with a unit's result.

    Only the next addition reads each earlier sum, and it adds two tensors of the same shape.
    Returns the result itself if the result is not only added.
    """
    program, value = units.graph.program, unit.outputs[0]
    while value not in program.kept_values:
        readers = [program.equations[k] for k in program.readers[value]]
        shape = program.values[value].shape
        if len(readers) != 1 or readers[0].name not in _ADDS:
            break
        operands, (result,) = readers[0].reads, readers[0].outputs
        if len(operands) != 2 or any(
            program.values[operand].shape != shape for operand in operands
        ):
            break
        value = result
    return value
