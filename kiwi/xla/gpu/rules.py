"""What XLA:GPU does with a program, as far as memory and communication depend on it.

It all-reduces in place (jax 0.10.2, a product whose operands are cut along what is summed over).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from kiwi.hlo.graph import HloGraph
from kiwi.hlo.program import Equation, Literal, Value
from kiwi.hlo.row_reductions import REDUCTIONS
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.interval import Interval
from kiwi.mesh import Hardware
from kiwi.xla.gpu.library_workspace import library_workspace
from kiwi.xla.gpu.transposed_operands import transposed_operands, transposed_reads
from kiwi.xla.rules.base import Intervals, Rules, Transposes, Workspace
from kiwi.xla.rules.matrix_operands import CONVOLUTION

_FEATURES_LAST_BYTES = 2
"""Up to this size of an element the convolution library writes the features last."""


class GpuRules(Rules):
    """The rules of XLA:GPU."""

    def held_without_barriers(self, units: UnitGraph, unit: Unit, result_bytes: int) -> Intervals:
        """Max pooling's zeros twice if an operator reads zeros of that shape, as a relu and its
        gradient do (jax 0.10.2, convnets of `benchmarks/fidelity`)."""
        once = super().held_without_barriers(units, unit, result_bytes)
        value = units.graph.program.values[unit.outputs[0]] if once else None
        readers = [] if value is None else list(_readers_of_zeros(units, value))
        if not readers:
            return once
        return *once, Interval(0, max((*readers, unit.index)) + 1, result_bytes)

    def workspace(self, units: UnitGraph, unit: Unit, hardware: Hardware) -> Workspace:
        """See `kiwi.xla.gpu.library_workspace`."""
        return library_workspace(units, unit, hardware)

    def transposed_reads(
        self, units: UnitGraph, unit: Unit, mesh_shape: tuple[int, ...]
    ) -> Mapping[int, Transposes]:
        """See `kiwi.xla.gpu.transposed_operands`."""
        return transposed_reads(units, unit, mesh_shape)

    def transposed_operands(
        self, units: UnitGraph, unit: Unit
    ) -> Mapping[int, Callable[[Mapping[int, int]], bool]]:
        """See `kiwi.xla.gpu.transposed_operands`."""
        return transposed_operands(units, unit)

    def overwritable(self, graph: HloGraph, unit: Unit) -> tuple[int, ...]:
        """None where something sums up columns of the result: one kernel computes both, and writes
        neither over what it reads (jax 0.10.2, the gradient of a GELU, whose sum is that of a bias;
        `tests/xla/gpu/test_compiler.py` holds it)."""
        found = super().overwritable(graph, unit)
        return () if found and _has_summed_columns(graph, unit.outputs[0]) else found

    def sums_elsewhere(
        self, root: Equation, cuts: Sequence[int], scattered: Collection[int]
    ) -> bool:
        """Where it transposes a convolution's summands to reduce-scatter them.

        It reduce-scatters along the most major dimension only (`GpuLayoutAssignment`), and the
        convolution library writes images in the order batch, features, space, in 16 bits features
        last. Matmuls write summands in the order wanted. `tests/xla/gpu/test_compiler.py` holds it.
        """
        if root.name != CONVOLUTION:
            return False
        result = root.jaxpr_eqn.outvars[0].aval
        batch, features, *space = root.jaxpr_eqn.params["dimension_numbers"].out_spec
        order = (batch, features, *space)
        if result.dtype.itemsize <= _FEATURES_LAST_BYTES:
            order = (batch, *space, features)
        longer = [d for d in order if result.shape[d] > cuts[d]]
        return bool(longer) and any(d != longer[0] for d in scattered)


def _has_summed_columns(graph: HloGraph, value: int) -> bool:
    """Whether something reads a value and reduces it, and not along its last dimension."""
    last = len(graph.program.values[value].shape) - 1
    readers = (graph.program.equations[k] for k in graph.program.readers[value])
    reduced = (e.jaxpr_eqn.params["axes"] for e in readers if e.name in REDUCTIONS)
    return any(last not in axes for axes in reduced)


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
