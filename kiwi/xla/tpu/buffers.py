"""How many bytes XLA:TPU's buffers have.

1. *Tiles.* The two minor dimensions of a buffer are cut into tiles of 8 x 128 elements, those of a
   vector into 128 to 1,024, and the last tile of each is filled up. Layout assignment makes those
   dimensions minor which waste least; of images, batch and features, from convolutions on through
   all maps and pooling.
2. *Narrow operands.* Matmuls and convolutions of float32 in default precision multiply bfloat16.
   What nothing else reads is stored so (`xla_jf_bf16_propagation`), also in the loop that stacks
   it; a reduction that is fused with what yields the value does not read it. Arguments stay as they
   are.
3. *Images.* An argument that convolutions read as an image is copied to bfloat16, with tiles of
   batch and features, as the step starts; the copy counts as the argument's.

Observed with jax 0.10.2 and libtpu 0.0.42 for v5e; `tests/xla/tpu/test_buffers.py` holds the
first two, `tests/xla/tpu/test_images.py` the third.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from kiwi.hlo.equation_kinds import interleaves, is_map
from kiwi.hlo.graph import HloGraph
from kiwi.hlo.in_place import is_of_library
from kiwi.hlo.loops import SLICE, STACK
from kiwi.hlo.program import Equation, Value
from kiwi.hlo.shared_kernels import shared_kernels
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.mesh import TensorSharding
from kiwi.mesh.tiles import buffer_elements
from kiwi.xla.rules.matrix_operands import CONVOLUTION, MATMUL

_PASSES = frozenset({"transpose", "reshape", "bitcast"})
_REDUCE = "reduce"
_POOLS = frozenset({"reduce_window", "select_and_scatter"})
_PRECISE = frozenset({"HIGH", "HIGHEST"})


class Buffers:
    """The sizes of a step's values."""

    def __init__(self, units: UnitGraph) -> None:
        self._units, self._values = units, units.graph.program.values
        self.images = minor_dimensions(units.graph)
        self._narrow: dict[int, bool] = {}
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}

    def local_bytes(self, value: int, layout: TensorSharding, mesh_shape: Sequence[int]) -> int:
        """Bytes of one device's part of a value."""
        found = self._values[value]
        shape = layout.local_shape(found.shape, mesh_shape)
        key = value, shape
        if key not in self._known:
            itemsize = 2 if self.is_narrow(value) else found.itemsize
            if found.producer is None:
                copied = min(2, itemsize) if self._is_copied_image(value) else 0
                image = buffer_elements(shape, self.images.get(value))
                self._known[key] = buffer_elements(shape) * itemsize + image * copied
            else:
                self._known[key] = buffer_elements(shape, self.images.get(value)) * itemsize
        return self._known[key]

    def padding(self, value: int, layout: TensorSharding, mesh_shape: Sequence[int]) -> float:
        """By how much tiles make one device's part of a value larger."""
        shape = layout.local_shape(self._values[value].shape, mesh_shape)
        return buffer_elements(shape, self.images.get(value)) / prod(shape) if shape else 1.0

    def copied_bytes(self, moved: Value, layout: TensorSharding, mesh_shape: Sequence[int]) -> int:
        """Bytes of one device's part of a copy of what is moved."""
        shape = layout.local_shape(moved.shape, mesh_shape)
        return buffer_elements(shape, self.images.get(moved.index)) * moved.itemsize

    def _is_copied_image(self, value: int) -> bool:
        """Whether a convolution reads an argument as an image; one that only maps read stays as it
        is."""
        program = self._units.graph.program
        if self.images.get(value) is None:
            return False
        return any(program.equations[r].name == CONVOLUTION for r in program.readers[value])

    def is_narrow(self, value: int) -> bool:
        """Whether a float32 value is stored as bfloat16."""
        if value not in self._narrow:
            self._narrow[value] = False  # What a loop hands on to itself.
            self._narrow[value] = self._is_narrow(value)
        return self._narrow[value]

    def _is_narrow(self, value: int) -> bool:
        units, found = self._units, self._values[value]
        if str(found.dtype) != "float32" or value not in units.producer:
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
        """Whether a unit does nothing with a float32 operand but multiply it as bfloat16, or hands
        it on to such units."""
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
        """Whether a reduction is fused with the unit in front of it that yields the value.

        Not with a loop, and not with a map that ends a matmul of its own: then a barrier stands
        between.
        """
        units, producer = self._units, self._units.producer[value]
        reads, yields = units.units[reader], units.units[producer]
        shared = shared_kernels(units, updates_alone=False).get(reader)
        if shared is None or value not in shared.values:
            return False
        if _REDUCE not in units.graph.opcodes[reads.root]:
            return False
        if units.border(yields) is not None or reads.loop != yields.loop:
            return False
        if interleaves(units.graph.program.equations[yields.root]):
            return False
        before = units.units[producer - 1] if producer else None
        return before is None or not (
            is_of_library(units.graph, before) and set(before.outputs) & set(yields.reads)
        )


def _multiplies_bfloat16(equation: Equation) -> bool:
    if equation.name not in (MATMUL, CONVOLUTION):
        return False
    precision = equation.jaxpr_eqn.params.get("precision")
    given = precision if isinstance(precision, tuple) else (precision,)
    return _PRECISE.isdisjoint(getattr(each, "name", str(each)) for each in given)


@functools.lru_cache(maxsize=4)
def buffers_of(units: UnitGraph) -> Buffers:
    """Those of a step, kept while it is planned."""
    return Buffers(units)


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
