"""XLA:TPU stores a float32 value as bfloat16 if only matmuls and convolutions read it.

In default precision matmuls and convolutions multiply bfloat16. A value that nothing else reads is
stored as bfloat16, also in the stack of a loop. A reduction that is fused with the unit that
computes the value does not count as a reader. Arguments keep their dtype. Collectives move such an
operand in bfloat16.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

from kiwi.hlo.equation_kinds import interleaves
from kiwi.hlo.in_place import is_of_library
from kiwi.hlo.loops import SLICE, STACK
from kiwi.hlo.program import Equation, Value
from kiwi.hlo.units import Unit
from kiwi.kernels.graph import KernelGraph
from kiwi.kernels.matrix_operands import CONVOLUTION, MATMUL
from kiwi.targets.rule import Rule
from kiwi.targets.witness import Example, Witness, array

_PASSES = frozenset({"transpose", "reshape", "bitcast"})
_REDUCE = "reduce"
_PRECISE = frozenset({"HIGH", "HIGHEST"})
_BFLOAT16_BYTES = 2


class NarrowOperands:
    """Determines which float32 values a step stores as bfloat16."""

    def __init__(self, graph: KernelGraph) -> None:
        self._units, self._values = graph.units, graph.units.graph.program.values
        self._shared = graph.shared
        self._narrow: dict[int, bool] = {}

    def is_narrow(self, value: int) -> bool:
        """Returns whether a float32 value is stored as bfloat16; False for values of other
        dtypes."""
        if value not in self._narrow:
            self._narrow[value] = False  # Ends the recursion for values that a loop carries.
            self._narrow[value] = self._is_narrow(value)
        return self._narrow[value]

    def _is_narrow(self, value: int) -> bool:
        units = self._units
        if str(self._values[value].dtype) != "float32" or value not in units.producer:
            return False
        program = units.graph.program
        if value in program.result_values or value in program.next_values:
            return False
        readers = units.readers.get(value, ())
        return bool(readers) and all(self._reads_narrow(reader, value) for reader in readers)

    def _reads_narrow(self, reader: int, value: int) -> bool:
        unit = self._units.units[reader]
        return self.multiplies_narrow(unit, value) or self._is_reduced_at_once(reader, value)

    def multiplies_narrow(self, unit: Unit, value: int) -> bool:
        """Returns whether a unit only multiplies a float32 operand as bfloat16, or passes the
        operand on to units that do (as a slice or a stack of a loop)."""
        if self._units.border(unit) in (SLICE, STACK):
            return all(self.is_narrow(output) for output in unit.outputs)
        equations = self._units.graph.program.equations
        passed = {value}
        for index in unit.equations:
            equation = equations[index]
            if passed.isdisjoint(equation.reads):
                continue
            if self._units.graph.opcodes[index] <= _PASSES and index != unit.root:
                passed.update(equation.outputs)
            elif not _multiplies_bfloat16(equation):
                return False
        return True

    def _is_reduced_at_once(self, reader: int, value: int) -> bool:
        """Returns whether the reader is a reduction that is fused with the unit that computes the
        value.

        A reduction is not fused with the border of a loop, a unit of another loop, or a unit that
        interleaves elements. Nor is it fused with a map behind a matmul of the previous unit, since
        a barrier stands between.
        """
        units, producer = self._units, self._units.producer[value]
        reading, yielding = units.units[reader], units.units[producer]
        shared = self._shared.get(reader)
        if shared is None or value not in shared.values:
            return False
        if _REDUCE not in units.graph.opcodes[reading.root]:
            return False
        if units.border(yielding) is not None or reading.loop != yielding.loop:
            return False
        if interleaves(units.graph.program.equations[yielding.root]):
            return False
        unit_before = units.units[producer - 1] if producer else None
        return unit_before is None or not (
            is_of_library(units.graph, unit_before)
            and set(unit_before.outputs) & set(yielding.reads)
        )


def _multiplies_bfloat16(equation: Equation) -> bool:
    """Returns whether an equation is a matmul or convolution that multiplies bfloat16: one that
    does not ask for high precision."""
    if equation.name not in (MATMUL, CONVOLUTION):
        return False
    precision = equation.jaxpr_eqn.params.get("precision")
    precisions = precision if isinstance(precision, tuple) else (precision,)
    return _PRECISE.isdisjoint(getattr(part, "name", str(part)) for part in precisions)


def _apply(graph: KernelGraph) -> KernelGraph:
    operands, values = NarrowOperands(graph), graph.units.graph.program.values

    def moved(unit: Unit, value: Value) -> Value:
        is_wider = str(value.dtype) == "float32"
        if is_wider and operands.multiplies_narrow(unit, value.index):
            return value.of_dtype("bfloat16")
        return value

    stored_itemsize = {
        value: _BFLOAT16_BYTES for value in range(len(values)) if operands.is_narrow(value)
    }
    moved_by_unit = {
        kernel.unit.index: tuple(moved(kernel.unit, value) for value in kernel.moved)
        for kernel in graph.kernels
    }
    storage = replace(graph.storage, stored_itemsize=stored_itemsize)
    return replace(graph.stating("moved", moved_by_unit), storage=storage)


_WIDTH = 1024


def _products(x: jax.Array, v: jax.Array, w: jax.Array, precision: str) -> jax.Array:
    first = jnp.matmul(x, v, precision=precision)
    return jnp.matmul(first, w, precision=precision)


_MATRICES = (array(_WIDTH, _WIDTH),) * 3

WITNESS = Witness(
    says="The product that another matmul reads is written in bfloat16.",
    example=Example(lambda x, v, w: _products(x, v, w, "default"), _MATRICES),
    shows=lambda module: any(k.writes(_WIDTH**2, "bf16") for k in module.kernels),
    control=Example(lambda x, v, w: _products(x, v, w, "highest"), _MATRICES),
)


RULE = Rule(
    name="tpu_narrow_operands",
    does="Float32 values that only matmuls and convolutions in default precision read are stored "
    "and moved as bfloat16.",
    component="xla_jf_bf16_propagation",
    observed="jax 0.10.2, libtpu 0.0.42.1, v5e",
    evidence=("tests/xla/tpu/test_buffers.py",),
    witness=WITNESS,
    apply=_apply,
)
