"""In which order of dimensions XLA:TPU computes what replaces a parameter.

The gradient of `w` in `x @ w` is a transposed product. Where that wastes no tiles, its dimensions
lie transposed in memory, and so do all maps of it, up to the new parameter and its moments. Layout
assignment then copies each of the old ones to that order as the step starts (about every second
into the place of another one, which nothing reads any more), and the new ones back.

Observed with jax 0.10.2 and libtpu 0.0.42 for v5e (an MLP, a GPT, a scanned Llama);
`tests/xla/tpu/test_result_order.py` holds it.
"""

from collections.abc import Sequence

from kiwi.hlo.fusion import is_map
from kiwi.hlo.units import UnitGraph
from kiwi.xla.rules.matrix_operands import MATMUL
from kiwi.xla.tpu.buffers import elements_in_order


def is_transposed(units: UnitGraph, value: int) -> bool:
    """Whether a value is computed in another order than arguments of its shape have."""
    shape = units.graph.program.values[value].shape
    computed, given = _order_of_product(units, value), _order_of_argument(shape)
    sizes = [[shape[d] for d in order] for order in (computed, given)]
    if elements_in_order(sizes[0]) > elements_in_order(sizes[1]):
        return False
    long = [[d for d in order if shape[d] > 1] for order in (computed, given)]
    return long[0] != long[1]


def _order_of_argument(shape: Sequence[int]) -> tuple[int, ...]:
    """The dimensions from major to minor; one is made the most minor where that wastes less."""
    dims = range(len(shape))
    orders = [tuple(dims), *((*(d for d in dims if d != last), last) for last in dims)]
    return min(orders, key=lambda order: elements_in_order([shape[d] for d in order]))


def _order_of_product(units: UnitGraph, value: int) -> tuple[int, ...]:
    """The dimensions, from major to minor, of the product that a value is a map of."""
    graph, program = units.graph, units.graph.program
    shape = program.values[value].shape
    pending, seen = [value], {value}
    for value in pending:
        producer = program.values[value].producer
        if producer is None:
            continue
        equation, read = program.equations[producer], program.equations[producer].reads
        if equation.name == "transpose" and _is_product(units, read[0]):
            permutation = equation.jaxpr_eqn.params["permutation"]
            return tuple(sorted(range(len(shape)), key=permutation.__getitem__))
        if is_map(graph, producer):
            more = [v for v in read if program.values[v].shape == shape and v not in seen]
            pending += more
            seen.update(more)
    return tuple(range(len(shape)))


def _is_product(units: UnitGraph, value: int) -> bool:
    program = units.graph.program
    producer = program.values[value].producer
    return producer is not None and program.equations[producer].name == MATMUL
