"""Strategies whose seconds are corrected by compiled programs (`kiwi.corrections`)."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from kiwi.corrections import Correction, Corrections
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.problem.strategies import ShardingStrategy


def kind_of(units: UnitGraph, unit: Unit) -> str:
    """Returns a digest of a unit's computation: 16 hexadecimal digits over its operators, the
    shapes and dtypes of its operands and results, its phase and its trips. The digest is the same
    in equal layers, in every process and for every budget."""
    program = units.graph.program
    names = [program.equations[equation].name for equation in unit.equations]
    values = [program.values[index] for index in (*unit.reads, *unit.outputs)]
    types = [(value.shape, str(value.dtype)) for value in values]
    text = repr((names, types, unit.phase.value, units.trips(unit)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def corrected(
    corrections: Corrections,
    units: UnitGraph,
    unit: Unit,
    strategies: Sequence[ShardingStrategy],
) -> tuple[ShardingStrategy, ...]:
    """Returns the strategies of a unit, with compute seconds corrected where an entry of
    `corrections` applies."""
    if not corrections:
        return tuple(strategies)
    entries = corrections.of(kind_of(units, unit))
    return tuple(_corrected(entries, strategy) for strategy in strategies)


def _corrected(entries: Sequence[Correction], strategy: ShardingStrategy) -> ShardingStrategy:
    for entry in entries:
        if entry.applies(strategy.reads, strategy.results):
            factored = entry.factor * strategy.compute_seconds
            seconds = factored if entry.seconds is None else entry.seconds
            return replace(strategy, compute_seconds=seconds)
    return strategy
