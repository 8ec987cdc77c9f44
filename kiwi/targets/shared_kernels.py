"""Multi-output fusion: XLA computes a unit in the kernel of an earlier unit.

A kernel that iterates over a tensor also computes other values from that tensor. For example, one
kernel computes both moments of Adam and the parameter. XLA:GPU fuses in this way only in updates
(rule `shared_updates`). XLA:TPU does so everywhere (rule `shared_kernels`): a matmul or a map also
reduces its result, for the gradient of a bias or the maximum of a softmax.

A fused unit reads from memory only the operands that the kernel does not hold already. A value that
depends on a reduction, as a variance depends on a mean, needs a second pass over the tensor.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod

from kiwi.hlo.equation_kinds import LIBRARY_OPCODES, is_map
from kiwi.hlo.graph import Phase
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.kernel import SharedKernel
from kiwi.kernels.reductions import reduces
from kiwi.kernels.strides import is_strided_unit


@dataclass
class _Kernel:
    """A kernel that computes several units of one phase and one loop.

    - `first`: the earliest of the units.
    - `elements`: the number of elements of the tensor that the kernel iterates over.
    - `multiplies`: whether `first` contains a library call, such as a matmul.
    - `read`: the values that the kernel reads from memory.
    - `yielded`: the values that the kernel computes element by element.
    """

    first: Unit
    elements: int
    multiplies: bool
    read: set[int] = field(default_factory=set)
    yielded: set[int] = field(default_factory=set)


def shared_kernels(units: UnitGraph, *, updates_alone: bool) -> Mapping[int, SharedKernel]:
    """Returns, by index of the unit, the earlier kernel that computes it. Units with a kernel of
    their own are left out.

    - `updates_alone`: whether the compiler shares kernels in updates only.
    """
    shared: dict[int, SharedKernel] = {}
    kernel_with: dict[int, _Kernel] = {}
    for unit in units.units:
        multiplies = any(units.graph.opcodes[index] & LIBRARY_OPCODES for index in unit.equations)
        if not (multiplies or _goes_over(units, unit)):
            continue
        if updates_alone and not _updates(units, unit, multiplies=multiplies):
            continue
        elements = _elements(units, unit.outputs if multiplies else (*unit.reads, *unit.outputs))
        kernel = None if multiplies else _joined(units, unit, elements, kernel_with)
        if kernel is None:
            kernel = _Kernel(unit, elements, multiplies)
        else:
            values = frozenset(unit.reads) & (kernel.read | kernel.yielded)
            shared[unit.index] = SharedKernel(kernel.first.index, values)
        if not multiplies:
            kernel.read.update(unit.reads)
        if not reduces(units, unit):
            kernel.yielded.update(unit.outputs)
        large = (
            value for value in kernel.read | kernel.yielded if _elements(units, [value]) == elements
        )
        kernel_with.update(dict.fromkeys(large, kernel))
    return shared


def _joined(
    units: UnitGraph, unit: Unit, elements: int, kernel_with: Mapping[int, _Kernel]
) -> _Kernel | None:
    """Returns the latest kernel that can also compute the unit; None if there is none.

    The kernel must hold one of the unit's operands, belong to the same phase and loop, and iterate
    over as many elements. All operands that the kernel does not compute must exist before its first
    unit. Only a reduction joins a kernel that multiplies.
    """
    kernels = {
        id(candidate): candidate
        for candidate in map(kernel_with.get, unit.reads)
        if candidate is not None
    }
    for kernel in sorted(kernels.values(), key=lambda candidate: -candidate.first.index):
        first = kernel.first
        is_near = (first.phase, first.loop) == (unit.phase, unit.loop)
        is_as_large = kernel.elements == elements
        may_join = reduces(units, unit) or not kernel.multiplies
        other_operands = set(unit.reads) - kernel.yielded
        is_known = all(units.producer.get(value, -1) < first.index for value in other_operands)
        if is_near and is_as_large and may_join and is_known:
            return kernel
    return None


def _updates(units: UnitGraph, unit: Unit, *, multiplies: bool) -> bool:
    """Returns whether a unit of the update phase consists of maps only."""
    return unit.phase is Phase.UPDATE and not multiplies and not reduces(units, unit)


def _goes_over(units: UnitGraph, unit: Unit) -> bool:
    """Returns whether a unit consists of maps, with at most one reduction at its end, and is not
    strided."""
    *chain, root = unit.equations
    is_end = is_map(units.graph, root) or reduces(units, unit)
    is_of_maps = is_end and all(is_map(units.graph, index) for index in chain)
    return is_of_maps and not is_strided_unit(units, unit)


def _elements(units: UnitGraph, values: Collection[int]) -> int:
    """Returns the number of elements of the largest value; 0 if there are no values."""
    shapes = (units.graph.program.values[value].shape for value in values)
    return max(map(prod, shapes), default=0)
