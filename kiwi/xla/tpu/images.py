"""The values that convolutions read and yield, whose batch and features XLA:TPU makes minor.

Maps and pooling keep the order of dimensions, so that it spreads from the convolutions to all that
is computed from images elementwise.

Observed with jax 0.10.2 and libtpu 0.0.42 for v5e (a convnet and a U-Net of `benchmarks/fidelity`);
`tests/xla/tpu/test_images.py` holds it.
"""

from collections.abc import Iterator, Mapping

from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.program import Equation
from kiwi.xla.rules.matrix_operands import CONVOLUTION

_POOLS = frozenset({"reduce_window", "select_and_scatter"})


def minor_dimensions(graph: HloGraph) -> Mapping[int, tuple[int, int]]:
    """By value, the two dimensions that are minor; only for what is connected to a convolution."""
    program = graph.program
    pairs = (pair for equation in program.equations for pair in _of_convolution(equation))
    kernels = {e.inputs[1] for e in program.equations if e.name == CONVOLUTION}
    given = kernels.intersection(program.arguments)  # They stay as they are.
    found = {value: minor for value, minor in pairs if value not in given}
    pending = list(found)
    for value in pending:
        producer, rank = program.values[value].producer, len(program.values[value].shape)
        around = [*program.readers[value], *(() if producer is None else (producer,))]
        for index in around:
            if not (is_map(graph, index) or graph.opcodes[index] & _POOLS):
                continue
            equation = program.equations[index]
            for other in (*equation.reads, *equation.outputs):
                if other not in found and _is_alike(graph, index, value, other, rank):
                    found[other] = found[value]
                    pending.append(other)
    return found


def _is_alike(graph: HloGraph, index: int, value: int, other: int, rank: int) -> bool:
    """Whether an equation keeps the order of dimensions from one value to another."""
    shape, wanted = graph.program.values[other].shape, graph.program.values[value].shape
    return shape == wanted or (bool(graph.opcodes[index] & _POOLS) and len(shape) == rank)


def _of_convolution(equation: Equation) -> Iterator[tuple[int, tuple[int, int]]]:
    if equation.name != CONVOLUTION:
        return
    numbers = equation.jaxpr_eqn.params["dimension_numbers"]
    tensors = (*equation.inputs, *equation.outputs)
    specs = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    for value, spec in zip(tensors, specs, strict=True):
        if isinstance(value, int):
            yield value, (spec[0], spec[1])
