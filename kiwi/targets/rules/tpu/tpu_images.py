"""XLA:TPU makes batch and features the minor dimensions of images.

The layout propagates from convolutions through all maps and pooling. An argument that a convolution
reads as an image is copied to bfloat16 at the start of the step, with tiles of batch and features.
The memory account counts this copy with the argument. An argument that only maps read, and a kernel
that is an argument, keep their layout.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import jax.numpy as jnp

from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.program import Equation
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.matrix_operands import CONVOLUTION
from kiwi.kernels.storage import MinorDimensions
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array, convolved
from kiwi.xla.read.inspected import InspectedModule

_POOLS = frozenset({"reduce_window", "select_and_scatter"})
_BFLOAT16_BYTES = 2


def minor_dimensions(graph: HloGraph) -> Mapping[int, MinorDimensions]:
    """Returns the two minor dimensions of each value that is connected to a convolution by maps and
    pooling."""
    program = graph.program
    pairs = (pair for equation in program.equations for pair in _of_convolution(equation))
    kernels = {
        convolution.inputs[1]
        for convolution in program.equations
        if convolution.name == CONVOLUTION
    }
    kernel_arguments = kernels.intersection(program.arguments)  # These keep their layout.
    minor_of = {value: minor for value, minor in pairs if value not in kernel_arguments}
    pending = list(minor_of)
    for value in pending:
        producer, rank = program.values[value].producer, len(program.values[value].shape)
        around = [*program.readers[value], *(() if producer is None else (producer,))]
        for index in around:
            if not (is_map(graph, index) or graph.opcodes[index] & _POOLS):
                continue
            equation = program.equations[index]
            for neighbour in (*equation.reads, *equation.outputs):
                if neighbour not in minor_of and _is_alike(graph, index, value, neighbour, rank):
                    minor_of[neighbour] = minor_of[value]
                    pending.append(neighbour)
    return minor_of


def _is_alike(graph: HloGraph, index: int, value: int, other: int, rank: int) -> bool:
    """Returns whether equation `index` gives `value` and `other` the same minor dimensions: both
    have the same shape, or a pool connects them and both have rank `rank`."""
    other_shape, value_shape = graph.program.values[other].shape, graph.program.values[value].shape
    return other_shape == value_shape or (
        bool(graph.opcodes[index] & _POOLS) and len(other_shape) == rank
    )


def _of_convolution(equation: Equation) -> Iterator[tuple[int, MinorDimensions]]:
    """Yields the operands and the result of a convolution, with their minor dimensions; nothing for
    other equations."""
    if equation.name != CONVOLUTION:
        return
    numbers = equation.jaxpr_eqn.params["dimension_numbers"]
    tensors = (*equation.inputs, *equation.outputs)
    specs = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    for value, spec in zip(tensors, specs, strict=True):
        if isinstance(value, int):
            yield value, (spec[0], spec[1])


def _copied_itemsizes(graph: HloGraph, minor_of: Mapping[int, MinorDimensions]) -> dict[int, int]:
    """Returns the bytes of an element of the copy, by argument that a convolution reads as an
    image."""
    program = graph.program
    return {
        value: min(_BFLOAT16_BYTES, program.values[value].itemsize)
        for value in minor_of
        if program.values[value].producer is None
        and any(program.equations[reader].name == CONVOLUTION for reader in program.readers[value])
    }


def _apply(graph: KernelGraph) -> KernelGraph:
    hlo = graph.units.graph
    minor_of = minor_dimensions(hlo)
    copied_itemsize = _copied_itemsizes(hlo, minor_of)
    storage = replace(graph.storage, minor=minor_of, copied_itemsize=copied_itemsize)
    return replace(graph, storage=storage)


_IMAGES, _KERNEL = array(4, 32, 32, 64), array(3, 3, 64, 64)


def _has_minor_batch(module: InspectedModule) -> bool:
    """Returns whether a kernel writes an image whose two minor dimensions are features and
    batch."""
    results = (array for kernel in module.kernels for array in kernel.results)
    images = (array for array in results if array.shape == (4, 32, 32, 64))
    return any(array.layout.startswith(("3,0,", "0,3,")) for array in images)


WITNESS = Witness(
    says="A kernel writes images whose two minor dimensions are batch and features.",
    example=Example(convolved, (_IMAGES, _KERNEL)),
    shows=_has_minor_batch,
    control=Example(jnp.sin, (_IMAGES,)),
)


RULE = Rule(
    name="tpu_images",
    does="Batch and features are the minor dimensions of images. An argument that convolutions "
    "read as an image has a copy in bfloat16.",
    component="layout assignment of XLA:TPU",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/xla/tpu/test_images.py",),
    witness=WITNESS,
    apply=_apply,
)
