"""Memory that a unit holds from the start of the step, because nothing tells XLA to wait.

Some operators are expanded by XLA into constants of the size of their operands. These depend on
nothing, so that the scheduler computes them first and holds them until the operator runs; a fence
cannot reach them (`kiwi.plan.fences`). Counted in copies of the unit's result, found with
`benchmarks/fidelity` (convnet, lstm; jax 0.10.2):

- `select_and_scatter` (the gradient of max pooling). CPU: one index array of 4-byte integers per
  dimension and the zeros that it adds to. GPU: the zeros that it adds to. Where other operators
  read zeros of that shape, as a relu before the pooling and its gradient do, XLA:GPU makes both at
  once, in front of the first reader: those that they read, until the last, and the copy to add to.
- `scan`: the stacked results, which the loop writes slice by slice over zeros.
- `scatter_add` onto zeros (the gradient of an embedding). CPU: the zeros, whose place the result
  takes. A result of the function has its place from the start anyway.
"""

from collections.abc import Iterator

import numpy as np

from kiwi.hlo.program import Equation, Literal, Value
from kiwi.hlo.unit import Unit
from kiwi.hlo.units import UnitGraph
from kiwi.solver.problem import Interval

TARGETS = ("cpu", "cuda")
"""Compilers whose memory is modelled."""

_INDEX_BYTES = 4


def hoisted(units: UnitGraph, unit: Unit, result_bytes: int, target: str) -> tuple[Interval, ...]:
    """What XLA holds for a unit from the start of the step on, beside its result.

    `result_bytes` are the local bytes of its result, `target` is one of `TARGETS`.
    """
    name = units.graph.program.equations[unit.root].name
    if name == "select_and_scatter_add":
        of_target = _on_cpu if target == "cpu" else _on_gpu
        return tuple(of_target(units, unit, result_bytes))
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


def _on_cpu(units: UnitGraph, unit: Unit, result_bytes: int) -> Iterator[Interval]:
    """Of max pooling's gradient."""
    value = units.graph.program.values[unit.outputs[0]]
    index_bytes = len(value.shape) * _INDEX_BYTES * result_bytes // value.itemsize
    yield Interval(0, unit.index + 1, result_bytes + index_bytes)


def _on_gpu(units: UnitGraph, unit: Unit, result_bytes: int) -> Iterator[Interval]:
    """Of max pooling's gradient."""
    readers = list(_readers_of_zeros(units, units.graph.program.values[unit.outputs[0]]))
    start = min((*readers, unit.index)) if readers else 0
    yield Interval(start, unit.index + 1, result_bytes)
    if readers:
        yield Interval(start, max((*readers, unit.index)) + 1, result_bytes)


def _readers_of_zeros(units: UnitGraph, like: Value) -> Iterator[int]:
    """The units with an operator that reads zeros of the shape and dtype of a value."""
    equations = units.graph.program.equations
    for unit in units.units:
        if any(_reads_zeros(equations[k], like) for k in unit.equations):
            yield unit.index


def _reads_zeros(equation: Equation, like: Value) -> bool:
    """Whether a literal zero is an operand, which XLA broadcasts to the shape of the result."""
    if equation.jaxpr_eqn.outvars[0].aval.shape != like.shape:
        return False
    literals = (np.asarray(i.value) for i in equation.inputs if isinstance(i, Literal))
    return any(each.dtype == like.dtype and not each.any() for each in literals)


def _stacked_bytes(units: UnitGraph, unit: Unit, result_bytes: int) -> int:
    """The part of a scan's results behind its carry."""
    program = units.graph.program
    equation = program.equations[unit.root]
    sizes = [program.values[o].size_bytes for o in unit.outputs]
    is_stacked = equation.stacked_outputs
    stacked = sum(size for size, s in zip(sizes, is_stacked, strict=True) if s)
    return result_bytes * stacked // max(1, sum(sizes))
