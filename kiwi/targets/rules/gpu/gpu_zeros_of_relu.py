"""XLA:GPU writes the zeros of a max pooling's gradient and the zeros of a relu in one kernel.

A relu and its gradient read zeros of the same shape as the result of the pooling's gradient. The
kernel writes two arrays of zeros, which exist as long as either array is needed.
"""

from collections.abc import Iterator

import jax
import numpy as np

from kiwi.hlo.program import Equation, Literal, Value
from kiwi.hlo.units import UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.kernel import HeldEarly
from kiwi.targets.max_pooling import GRADIENT, IMAGES, gradients, pooled_gradient
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array
from kiwi.xla.read.inspected import InspectedModule


def _readers_of_zeros(units: UnitGraph, like: Value) -> Iterator[int]:
    """Yields the indices of the units with an operator that reads zeros of the shape and dtype of
    `like`."""
    equations = units.graph.program.equations
    for unit in units.units:
        if any(_reads_zeros(equations[index], like) for index in unit.equations):
            yield unit.index


def _reads_zeros(equation: Equation, like: Value) -> bool:
    """Returns whether an equation has a literal zero as operand that XLA broadcasts to the shape of
    `like`."""
    if equation.jaxpr_eqn.outvars[0].aval.shape != like.shape:
        return False
    literals = (
        np.asarray(operand.value) for operand in equation.inputs if isinstance(operand, Literal)
    )
    return any(literal.dtype == like.dtype and not literal.any() for literal in literals)


def _apply(graph: KernelGraph) -> KernelGraph:
    units, second_zeros = graph.units, {}
    for unit in gradients(units):
        readers = list(_readers_of_zeros(units, units.graph.program.values[unit.outputs[0]]))
        if readers:
            second_zeros[unit.index] = (HeldEarly(max((*readers, unit.index)) + 1),)
    return graph.adding("held_early_without_barriers", second_zeros)


def _relu_gradient(w: jax.Array, x: jax.Array) -> jax.Array:
    return pooled_gradient(w, x, jax.nn.relu)


def _writes_zeros_twice(module: InspectedModule) -> bool:
    zeros = [
        kernel
        for kernel in module.kernels
        if kernel.reads_nothing and kernel.writes(IMAGES.size, "f32")
    ]
    return sum(len(writer.results) for writer in zeros) == 2


WITNESS = Witness(
    says="Two arrays of zeros are written.",
    example=Example(_relu_gradient, (array(64, 64), IMAGES)),
    shows=_writes_zeros_twice,
    control=GRADIENT,
)

RULE = Rule(
    name="gpu_zeros_of_relu",
    does="The zeros exist twice if a relu of the same shape reads zeros, unless a barrier prevents "
    "it.",
    component="SelectAndScatterExpander, HloCSE",
    observed="jax 0.10.2, H100",
    evidence=("benchmarks/fidelity",),
    witness=WITNESS,
    apply=_apply,
)
