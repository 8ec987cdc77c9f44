"""Strategies with the seconds of compiled programs (`kiwi.corrections`)."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from kiwi.corrections import Correction, Corrections
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.problem.strategies import ShardingStrategy


def kind_of(units: UnitGraph, unit: Unit) -> str:
    """A digest of a unit's computation: its operators, and shapes and dtypes of its operands and
    results. It is the same in all equal layers, in each process and for each budget."""
    program = units.graph.program
    names = [program.equations[e].name for e in unit.equations]
    values = [program.values[v] for v in (*unit.reads, *unit.outputs)]
    types = [(value.shape, str(value.dtype)) for value in values]
    text = repr((names, types, unit.phase.value, units.trips(unit)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def corrected(
    corrections: Corrections,
    units: UnitGraph,
    unit: Unit,
    strategies: Sequence[ShardingStrategy],
) -> tuple[ShardingStrategy, ...]:
    """The strategies of a unit, with the seconds that programs took."""
    if not corrections:
        return tuple(strategies)
    own = corrections.of(kind_of(units, unit))
    return tuple(_corrected(own, strategy) for strategy in strategies)


def _corrected(entries: Sequence[Correction], strategy: ShardingStrategy) -> ShardingStrategy:
    for entry in entries:
        if entry.applies(strategy.reads, strategy.results):
            factored = entry.factor * strategy.compute_seconds
            seconds = factored if entry.seconds is None else entry.seconds
            return replace(strategy, compute_seconds=seconds)
    return strategy
