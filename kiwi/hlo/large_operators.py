"""Which communication can run in the background: gathers of values that no large unit precedes
(parameters), and reductions of values on which no large unit depends (gradients).

Large units compute matmuls, convolutions or kernels. A value is *early* if no large unit precedes
it, and *late* if no large unit depends on it. Gathers of early values and reductions of late values
neither wait for computation nor delay it.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping

from kiwi.hlo.equation_kinds import LIBRARY_OPCODES, MATMULS
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.loops import CARRY
from kiwi.hlo.units import Unit, UnitGraph


def multiplies(graph: HloGraph, equation: int) -> bool:
    """Whether an equation is a matmul, a convolution or a library kernel, or has one in its
    region."""
    traced = graph.program.equations[equation]
    is_large = traced.is_library_kernel or bool(graph.opcodes[equation] & LIBRARY_OPCODES)
    return is_large or (graph.equations[equation].is_region and traced.region_multiplies)


@functools.lru_cache(maxsize=4)
def large_units(units: UnitGraph) -> tuple[bool, ...]:
    """Returns, for each unit, whether it is large."""
    return tuple(any(multiplies(units.graph, k) for k in unit.equations) for unit in units.units)


def has_matmul(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit computes a matmul. Convolutions and kernels do not count."""
    return any(units.graph.opcodes[k] & MATMULS for k in unit.equations)


def batch_factors(units: UnitGraph, unit: Unit) -> frozenset[int]:
    """Returns the batch factors of a unit's matmuls: factors that both operands and the result of a
    matmul have."""
    factors: set[int] = set()
    for place, index in enumerate(unit.equations):
        if units.graph.opcodes[index] & MATMULS:
            tensors = (*unit.rule.operator_operands[place], *unit.rule.operator_results[place])
            factors |= set.intersection(
                *({factor for dim in dims for factor in dim} for _, dims in tensors)
            )
    return frozenset(factors)


@functools.lru_cache(maxsize=4)
def early_values(units: UnitGraph) -> Mapping[int, bool]:
    """Returns, by value, whether it is early."""
    program, is_large = units.graph.program, large_units(units)
    early = dict.fromkeys((*program.arguments, *program.constants), True)
    for unit in units.units:
        is_early = units.border(unit) != CARRY and not is_large[unit.index]
        is_early = is_early and all(early[value] for value in unit.reads)
        early.update(dict.fromkeys(unit.outputs, is_early))
    return early


@functools.lru_cache(maxsize=4)
def late_values(units: UnitGraph) -> Mapping[int, bool]:
    """Returns, by value that a unit computes, whether it is late."""
    is_large = large_units(units)
    return without_dependents(
        units, units.graph.program.next_values, lambda reader, _: is_large[reader]
    )


def without_dependents(
    units: UnitGraph, needed: Container[int], needs: Callable[[int, int], bool]
) -> dict[int, bool]:
    """Returns, by value that a unit computes, whether nothing that is asked about depends on it.

    - `needed`: values that are taken to have dependents.
    - `needs`: whether a unit that reads a value is a dependent. Takes the unit's index and the
      value.
    """
    is_free: dict[int, bool] = {}
    for unit in reversed(units.units):
        for value in unit.outputs:
            readers = units.readers.get(value, ())
            is_free[value] = (
                value not in needed
                and not any(needs(reader, value) for reader in readers)
                and all(
                    is_free[output] for reader in readers for output in units.units[reader].outputs
                )
            )
    return is_free


def reduces_late(units: UnitGraph, unit: Unit) -> bool:
    """Whether all results of a unit are late."""
    is_late = late_values(units)
    return all(is_late[value] for value in unit.outputs)


def share_of_gathers(units: UnitGraph, reader: Unit, value: int) -> float:
    """Returns the share of a value in the bytes of all early values that large units read in the
    reader's loop.

    If the reader is in no loop, the early values outside of loops count. The share of a value that
    is not early is 1.
    """
    if not early_values(units)[value]:
        return 1.0
    return share_of_bytes(units, [value], _read_early_bytes(units)[reader.loop])


def share_of_bytes(units: UnitGraph, values: Iterable[int], in_all_bytes: float) -> float:
    """Returns the bytes of values as a share of `in_all_bytes`, at most 1; 1 if `in_all_bytes`
    is 0."""
    size_bytes = sum(units.graph.program.values[value].size_bytes for value in values)
    return min(1.0, size_bytes / in_all_bytes) if in_all_bytes else 1.0


@functools.lru_cache(maxsize=4)
def _read_early_bytes(units: UnitGraph) -> Counter[int | None]:
    is_early = early_values(units)
    reads = {
        (unit.loop, value) for unit in large_ones(units) for value in unit.reads if is_early[value]
    }
    return _bytes_by_loop(units, reads)


def large_ones(units: UnitGraph) -> Iterable[Unit]:
    """Returns the large units, in order."""
    return itertools.compress(units.units, large_units(units))


def _bytes_by_loop(
    units: UnitGraph, values: Iterable[tuple[int | None, int]]
) -> Counter[int | None]:
    total_bytes: Counter[int | None] = Counter()
    for loop, value in values:
        total_bytes[loop] += units.graph.program.values[value].size_bytes
    return total_bytes
