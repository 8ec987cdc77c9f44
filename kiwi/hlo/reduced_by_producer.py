"""Reductions that are computed in the kernel which yields what they reduce.

XLA:TPU ends a matmul with maps, and the kernel of either sums up what it writes: for the gradient
of a bias, the mean of a normalisation, the maximum of a softmax. What depends on another reduction
of the same value, as a variance and a sum of exponentials do, goes over the value again.

Observed with libtpu 0.0.42.1 in the encoder of `benchmarks/fidelity`, where 23 of 46 reductions are
kernels of their own or of other maps; `tests/xla/tpu/test_compiler.py` holds it.
"""

from kiwi.hlo.equation_kinds import LIBRARY_OPCODES, is_map
from kiwi.hlo.units import Unit, UnitGraph

REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})


def is_reduced_by_producer(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit reduces what a matmul or a map of its phase and loop yields, with nothing that
    is known only later."""
    program = units.graph.program
    if program.equations[unit.root].name not in REDUCTIONS or not unit.reads:
        return False
    reduced = max(unit.reads, key=lambda value: program.values[value].size_bytes)
    if reduced not in units.producer:
        return False
    producer = units.units[units.producer[reduced]]
    is_near = (producer.phase, producer.loop) == (unit.phase, unit.loop)
    others = (units.producer.get(value, -1) for value in unit.reads if value != reduced)
    is_known = all(index < producer.index for index in others)
    return is_near and is_known and _may_reduce(units, producer)


def _may_reduce(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit is a kernel that may reduce what it yields: a matmul, a convolution, a map."""
    graph = units.graph
    return all(graph.opcodes[k] & LIBRARY_OPCODES or is_map(graph, k) for k in unit.equations)
