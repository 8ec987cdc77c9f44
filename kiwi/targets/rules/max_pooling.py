"""Memory that compilers take for the gradient of max pooling, beyond operands and result.

XLA expands `select_and_scatter` into a window reduction that finds the selected elements, value and
index per dimension, and a scatter of the gradient to these, onto zeros:

- The zeros are the result's memory in a plan, which ties them to the step
  (`kiwi.emit.interpreter`). Without barriers they are there from the start (`ZEROS`). XLA:GPU then
  holds them twice if an operator reads zeros of that shape, as a relu and its gradient do
  (`ZEROS_OF_RELU`).
- The selected values and indices, each as large as the gradient that comes in, are held until they
  are scattered (`SELECTED`), by XLA:CPU and XLA:GPU.
- XLA:CPU holds the indices of all elements, which the reduction reads, from the start of the step:
  they depend on nothing (`INDICES`). XLA:GPU computes them as it reduces.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kiwi.hlo.program import MAX_POOLING_GRADIENT, Equation, Literal, Value
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.kernel import HeldEarly
from kiwi.targets.rule import Rule, more_of_units, of_units

_INDEX_BYTES = 4
_EVIDENCE = ("tests/plans/test_memory.py", "tests/emit/test_max_pooling.py", "benchmarks/fidelity")


def _gradients(units: UnitGraph) -> Iterator[Unit]:
    """The units whose root is the gradient of max pooling."""
    equations = units.graph.program.equations
    return (unit for unit in units.units if equations[unit.root].name == MAX_POOLING_GRADIENT)


@dataclass(frozen=True)
class Indices:
    """An index for each dimension and element of a result of so many dimensions."""

    dimensions: int
    itemsize: int

    @classmethod
    def of(cls, units: UnitGraph, unit: Unit) -> "Indices":
        """Those of a unit's result."""
        value = units.graph.program.values[unit.outputs[0]]
        return cls(len(value.shape), value.itemsize)

    def local_bytes(self, result_bytes: int) -> int:
        """Where the local result has `result_bytes`."""
        return self.dimensions * _INDEX_BYTES * result_bytes // self.itemsize


@dataclass(frozen=True)
class SelectedElements:
    """Values and indices of the selected elements, which are `ratio` times the result's."""

    ratio: float
    indices: Indices

    def local_bytes(self, result_bytes: int) -> int:
        """Where the local result has `result_bytes`."""
        return int(self.ratio * (result_bytes + self.indices.local_bytes(result_bytes)))


def _selected(units: UnitGraph) -> dict[int, SelectedElements]:
    program = units.graph.program
    selected = {}
    for unit in _gradients(units):
        source = program.equations[unit.root].inputs[0]
        if isinstance(source, int):
            result = program.values[unit.outputs[0]]
            ratio = program.values[source].size_bytes / result.size_bytes
            selected[unit.index] = SelectedElements(ratio, Indices.of(units, unit))
    return selected


SELECTED = Rule(
    name="max_pooling_selected",
    does="Values and indices of the selected elements are held until they are scattered.",
    component="SelectAndScatterExpander",
    observed="jax 0.10.2",
    evidence=_EVIDENCE,
    apply=of_units("workspace_of_result", _selected),
)


def _indices(units: UnitGraph) -> dict[int, tuple[HeldEarly, ...]]:
    held = {}
    for unit in _gradients(units):
        value = units.graph.program.values[unit.outputs[0]]
        numerator = len(value.shape) * _INDEX_BYTES
        held[unit.index] = (HeldEarly(unit.index + 1, numerator, value.itemsize),)
    return held


INDICES = Rule(
    name="cpu_max_pooling_indices",
    does="The indices of all elements exist from the start of the step.",
    component="SelectAndScatterExpander of XLA:CPU",
    observed="jax 0.10.2",
    evidence=_EVIDENCE,
    apply=more_of_units("held_early", _indices),
)


def _zeros(units: UnitGraph) -> dict[int, tuple[HeldEarly, ...]]:
    return {unit.index: (HeldEarly(unit.index + 1),) for unit in _gradients(units)}


ZEROS = Rule(
    name="max_pooling_zeros",
    does="The zeros that the gradient is added to exist from the start of the step, unless a "
    "barrier ties them to it.",
    component="SelectAndScatterExpander",
    observed="jax 0.10.2",
    evidence=_EVIDENCE,
    apply=more_of_units("held_early_without_barriers", _zeros),
)


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
    return any(literal.dtype == like.dtype and not literal.any() for literal in literals)


def _add_zeros_of_relu(graph: KernelGraph) -> KernelGraph:
    units, second = graph.units, {}
    for unit in _gradients(units):
        readers = list(_readers_of_zeros(units, units.graph.program.values[unit.outputs[0]]))
        if readers:
            second[unit.index] = (HeldEarly(max((*readers, unit.index)) + 1),)
    return graph.adding("held_early_without_barriers", second)


ZEROS_OF_RELU = Rule(
    name="gpu_zeros_of_relu",
    does="The zeros exist twice if a relu of the same shape reads zeros, unless a barrier prevents "
    "it.",
    component="SelectAndScatterExpander, HloCSE",
    observed="jax 0.10.2, H100",
    evidence=("benchmarks/fidelity",),
    apply=_add_zeros_of_relu,
)
