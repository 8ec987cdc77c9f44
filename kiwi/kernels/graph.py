"""`KernelGraph`: the units of a step with the kernels that the compiler runs for them."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kiwi.hlo.program import Value
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.facts import TargetFacts
from kiwi.kernels.kernel import Kernel, RowReduction, SharedKernel
from kiwi.kernels.storage import Storage
from kiwi.mesh import Hardware


@dataclass(frozen=True, eq=False)
class KernelGraph:
    """The kernels that a target runs for the units of a step.

    - `units`: the units of the step, in order.
    - `hardware`: the devices.
    - `facts`: what the target does with any program.
    - `kernels`: one kernel for each unit.
    - `storage`: the bytes of each value's buffer.
    - `passes`: the names of the rules that stated facts, in order.
    """

    units: UnitGraph
    hardware: Hardware
    facts: TargetFacts
    kernels: tuple[Kernel, ...]
    storage: Storage
    passes: tuple[str, ...] = ()

    @classmethod
    def plain(cls, units: UnitGraph, hardware: Hardware, facts: TargetFacts) -> "KernelGraph":
        """Returns the kernels before any rule has stated facts about them."""
        values = units.graph.program.values
        kernels = (
            Kernel(unit, tuple(values[value] for value, _ in unit.rule.reads))
            for unit in units.units
        )
        return cls(units, hardware, facts, tuple(kernels), Storage(values))

    def __getitem__(self, unit: int) -> Kernel:
        """Returns the kernel of the unit with this index."""
        return self.kernels[unit]

    def stating(self, fact: str, by_unit: Mapping[int, Any]) -> "KernelGraph":
        """Returns the graph with another value of one fact for some kernels.

        - `fact`: the name of a field of `Kernel`.
        - `by_unit`: index of a unit → value of the fact.
        """
        if not by_unit:
            return self
        kernels = list(self.kernels)
        for index, stated in by_unit.items():
            kernels[index] = replace(kernels[index], **{fact: stated})
        return replace(self, kernels=tuple(kernels))

    def adding(self, fact: str, by_unit: Mapping[int, tuple[Any, ...]]) -> "KernelGraph":
        """Returns the graph with further entries of a fact that is a tuple.

        - `fact`: the name of a field of `Kernel`.
        - `by_unit`: index of a unit → further entries of the fact.
        """
        longer = {
            index: (*getattr(self.kernels[index], fact), *more)
            for index, more in by_unit.items()
            if more
        }
        return self.stating(fact, longer)

    @functools.cached_property
    def rows(self) -> Mapping[int, RowReduction]:
        """The reductions of rows in the kernels of their readers, by index of the reducing unit."""
        return {k.unit.index: k.rows for k in self.kernels if k.rows is not None}

    @functools.cached_property
    def shared(self) -> Mapping[int, SharedKernel]:
        """The earlier kernels that compute a later unit as well, by index of that unit."""
        return {k.unit.index: k.shared for k in self.kernels if k.shared is not None}

    def overwritable(self, unit: Unit) -> tuple[int, ...]:
        """Returns the values over which a unit of the graph may write its result."""
        return self.kernels[unit.index].overwritable

    def moved_value(self, unit: Unit, value: int) -> Value:
        """Returns the value that collectives move when an operand of a unit is resharded.

        Its dtype may be narrower than the operand's. If the unit does not read `value`, `value`
        itself is returned.
        """
        for (operand, _), moved in zip(
            unit.rule.reads, self.kernels[unit.index].moved, strict=True
        ):
            if operand == value:
                return moved
        return self.units.graph.program.values[value]

    def describe(self) -> Iterator[str]:
        """Yields lines of text: the passes, then one line for each kernel."""
        yield f"kernels for {self.facts.target!r} on {self.hardware.name}"
        yield "passes: " + ", ".join(self.passes)
        for kernel in self.kernels:
            yield describe_kernel(self, kernel)


def describe_kernel(graph: KernelGraph, kernel: Kernel) -> str:
    """Returns one line of text: the unit's operator, and each fact that differs from the
    default."""
    unit = kernel.unit
    stated = []
    for name, field in type(kernel).__dataclass_fields__.items():
        if name in ("unit", "moved"):
            continue
        fact = getattr(kernel, name)
        if fact != field.default:
            stated.append(f"{name}={fact!r}")
    operator = graph.units.graph.opcode_of(unit.root)
    return f"{unit.index:4d} {operator}" + (f": {', '.join(stated)}" if stated else "")
