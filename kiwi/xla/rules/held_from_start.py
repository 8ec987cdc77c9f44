"""Memory that a unit holds from the start of the step, because nothing tells XLA to wait.

Some operators are expanded by XLA into constants of the size of their operands. These depend on
nothing, so that the scheduler computes them first and holds them until the operator runs; a fence
cannot reach them (`kiwi.emit.barriers`). Counted in copies of the unit's result, found with
`benchmarks/fidelity` (convnet, lstm; jax 0.10.2):

- `select_and_scatter` (the gradient of max pooling). CPU: indices, see
  `kiwi.xla.rules.max_pooling`.
- `scan`: the stacked results, which the loop writes slice by slice over zeros.
- `scatter_add` onto zeros (the gradient of an embedding). CPU: the zeros, whose place the result
  takes. A result of the function has its place from the start anyway.
"""

from kiwi.hlo.program import MAX_POOLING_GRADIENT
from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.solver.problem import Interval
from kiwi.xla.rules.max_pooling import index_bytes

TARGETS = ("cpu", "cuda")
"""Compilers whose memory is modelled."""


def hoisted(units: UnitGraph, unit: Unit, result_bytes: int, target: str) -> tuple[Interval, ...]:
    """What XLA holds for a unit from the start of the step on, beside its result.

    `result_bytes` are the local bytes of its result, `target` is one of `TARGETS`.
    """
    name = units.graph.program.equations[unit.root].name
    if name == MAX_POOLING_GRADIENT:
        indices = index_bytes(units, unit, result_bytes)
        return (Interval(0, unit.index + 1, indices),) if target == "cpu" else ()
    if name == "scan" and unit.index > 0:
        # The result takes the zeros' place.
        return (Interval(0, unit.index, _stacked_bytes(units, unit, result_bytes)),)
    if name == "scatter-add" and target == "cpu" and _adds_to_constants(units, unit):
        return (Interval(0, unit.index, result_bytes),)
    return ()


def _adds_to_constants(units: UnitGraph, unit: Unit) -> bool:
    """Whether a scatter outside of loops writes a temporary, and starts from a constant."""
    program = units.graph.program
    start = program.equations[unit.root].inputs[0]
    producer = program.values[start].producer if isinstance(start, int) else None
    if producer is None or producer not in unit.equations or program.equations[producer].reads:
        return False
    fresh = program.result_values - set(units.aliased_results)
    return unit.loop is None and unit.index > 0 and fresh.isdisjoint(unit.outputs)


def _stacked_bytes(units: UnitGraph, unit: Unit, result_bytes: int) -> int:
    """The part of a scan's results behind its carry."""
    program = units.graph.program
    equation = program.equations[unit.root]
    sizes = [program.values[o].size_bytes for o in unit.outputs]
    is_stacked = equation.stacked_outputs
    stacked = sum(size for size, s in zip(sizes, is_stacked, strict=True) if s)
    return result_bytes * stacked // max(1, sum(sizes))
