"""Units that XLA computes in the kernel of an earlier one, by multi-output fusion.

A kernel that goes over a tensor anyway also computes what else is wanted of it: both moments of
Adam, and the parameter with them. XLA:GPU does so in updates alone, XLA:TPU everywhere: there a
matmul or a map also reduces what it yields, for the gradient of a bias or the maximum of a softmax.
A unit then reads from memory what its kernel has not, and no more. What depends on a reduction, as
a variance does on a mean, goes over the tensor again.

Slices of every n-th element, and pads between elements, XLA:TPU fuses with nothing, as associative
scans show (`tests/hlo/test_strides.py`).

Observed with libtpu 0.0.42.1, and with jax 0.10.2 for H100s, in the models of
`benchmarks/fidelity`; `tests/hlo/test_shared_kernels.py` holds it.
"""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod

from kiwi.hlo.equation_kinds import LIBRARY_OPCODES, is_map
from kiwi.hlo.graph import Phase
from kiwi.hlo.program import Equation
from kiwi.hlo.row_reductions import REDUCTIONS
from kiwi.hlo.units import Unit, UnitGraph


@dataclass
class _Kernel:
    """Units of one phase and loop that are computed together.

    - `elements`: of the tensor that it goes over.
    - `read`, `yielded`: the values that it has: from memory, and computed for each element.
    """

    first: Unit
    elements: int
    multiplies: bool
    read: set[int] = field(default_factory=set)
    yielded: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class SharedKernel:
    """What a unit shares with earlier ones.

    - `first`: the unit whose kernel it is.
    - `values`: what the unit reads and this kernel has anyway.
    """

    first: int
    values: frozenset[int]


@functools.lru_cache(maxsize=4)
def shared_kernels(units: UnitGraph, *, updates_alone: bool) -> Mapping[int, SharedKernel]:
    """By unit, those in the kernel of an earlier one; kept while a step is planned.

    - `updates_alone`: whether the compiler does so in updates only.
    """
    found: dict[int, SharedKernel] = {}
    kernel_with: dict[int, _Kernel] = {}
    for unit in units.units:
        multiplies = any(units.graph.opcodes[k] & LIBRARY_OPCODES for k in unit.equations)
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
            found[unit.index] = SharedKernel(kernel.first.index, values)
        if not multiplies:
            kernel.read.update(unit.reads)
        if not reduces(units, unit):
            kernel.yielded.update(unit.outputs)
        large = (v for v in kernel.read | kernel.yielded if _elements(units, [v]) == elements)
        kernel_with.update(dict.fromkeys(large, kernel))
    return found


def _joined(
    units: UnitGraph, unit: Unit, elements: int, kernel_with: Mapping[int, _Kernel]
) -> _Kernel | None:
    """The kernel of a value that a unit goes over, if all else that it reads is known by then."""
    kernels = {id(k): k for k in map(kernel_with.get, unit.reads) if k is not None}
    for kernel in sorted(kernels.values(), key=lambda k: -k.first.index):
        first = kernel.first
        is_near = (first.phase, first.loop) == (unit.phase, unit.loop)
        is_as_large = kernel.elements == elements
        may_join = reduces(units, unit) or not kernel.multiplies
        others = set(unit.reads) - kernel.yielded
        is_known = all(units.producer.get(value, -1) < first.index for value in others)
        if is_near and is_as_large and may_join and is_known:
            return kernel
    return None


def _updates(units: UnitGraph, unit: Unit, *, multiplies: bool) -> bool:
    """Whether a unit only maps elements, in an update."""
    return unit.phase is Phase.UPDATE and not multiplies and not reduces(units, unit)


def _goes_over(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit consists of maps, and of a reduction at most that ends it."""
    *before, root = unit.equations
    is_end = is_map(units.graph, root) or reduces(units, unit)
    is_of_maps = is_end and all(is_map(units.graph, k) for k in before)
    return is_of_maps and not is_strided_unit(units, unit)


def reduces(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit ends in a reduction."""
    return units.graph.program.equations[unit.root].name in REDUCTIONS


def _elements(units: UnitGraph, values: Collection[int]) -> int:
    """Of the largest of some values."""
    shapes = (units.graph.program.values[value].shape for value in values)
    return max(map(prod, shapes), default=0)


def is_strided(equation: Equation) -> bool:
    """Whether an equation takes every n-th element, or puts elements so far apart."""
    params = equation.jaxpr_eqn.params if equation.name in ("slice", "pad") else {}
    strides = params.get("strides") or ()
    between = (interior for _, _, interior in params.get("padding_config", ()))
    return any(stride != 1 for stride in strides) or any(between)


def is_strided_unit(units: UnitGraph, unit: Unit) -> bool:
    """Whether a unit has such an equation."""
    return any(is_strided(units.graph.program.equations[k]) for k in unit.equations)


def moved_beside_strides(units: UnitGraph, unit: Unit) -> tuple[tuple[int, int], ...]:
    """By place of a strided equation that takes what a unit reads, or yields its result, the bytes
    that go through memory between it and the rest of the unit.

    What XLA makes of those in between is not said: slices of broadcasts are broadcasts.
    """
    program = units.graph.program
    equations = [program.equations[k] for k in unit.equations]
    read, found = {value for value, _ in unit.rule.reads}, []
    for place, equation in enumerate(equations):
        if not is_strided(equation):
            continue
        is_first, is_last = equation.reads[0] in read, place == len(equations) - 1
        if is_first != is_last:
            (value, *_) = equation.outputs if is_first else equation.reads
            found.append((place, 2 * program.values[value].size_bytes))
    return tuple(found)
