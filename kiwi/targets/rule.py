"""`Rule`: one thing that a compiler does with a program, with the evidence for it.

Each rule is one file of `kiwi.targets.rules`. A rule states facts about the target (`states`),
about the kernels of a program (`apply`), or both. The problem, the memory account and the emission
read these facts. They never ask which compiler runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kiwi.hlo.units import UnitGraph
from kiwi.kernels.facts import TargetFacts
from kiwi.kernels.graph import KernelGraph
from kiwi.mesh import Hardware
from kiwi.targets.witness import NotShown, Witness

StatesFacts = Callable[[TargetFacts, Hardware], TargetFacts]
"""Returns the facts of a target, extended by facts that hold for any program on the hardware."""

StatesKernels = Callable[[KernelGraph], KernelGraph]
"""Returns the kernels of a program, extended by facts about them."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that a compiler does.

    - `name`: unique among the rules of all targets.
    - `does`: the behaviour, in a sentence or two.
    - `component`: the responsible pass or library, by XLA's name.
    - `observed`: the versions that show the behaviour, e.g. "jax 0.10.2, H100".
    - `evidence`: paths of tests, benchmarks and pages of this repository that show it.
    - `witness`: a small program whose compiled module shows it, or why there is none.
    - `states`: the facts about the target; None if the rule states none.
    - `apply`: the facts about the kernels of a program; None if the rule states none.
    - `limits`: known cases that the rule does not cover; empty if none is known.
    """

    name: str
    does: str
    component: str
    observed: str
    evidence: tuple[str, ...]
    witness: Witness | NotShown
    states: StatesFacts | None = None
    apply: StatesKernels | None = None
    limits: str = ""


def stating(**facts: Any) -> StatesFacts:
    """Returns a function that sets these fields of `TargetFacts` on any hardware."""

    def states(known: TargetFacts, hardware: Hardware) -> TargetFacts:
        return replace(known, **facts)

    return states


def fusing(**entries: Any) -> StatesFacts:
    """Returns a function that changes fields of `TargetFacts.fusion` on any hardware.

    A tuple is appended to the field's tuple. Any other entry replaces the field's value.
    """

    def states(known: TargetFacts, hardware: Hardware) -> TargetFacts:
        fusion = known.fusion
        changes = {
            name: (*getattr(fusion, name), *entry) if isinstance(entry, tuple) else entry
            for name, entry in entries.items()
        }
        return replace(known, fusion=replace(fusion, **changes))

    return states


ByUnit = Callable[[UnitGraph], Mapping[int, Any]]
"""Returns a fact of kernels, by index of the unit."""


def of_units(fact: str, by_unit: ByUnit) -> StatesKernels:
    """Returns a function that sets the field `fact` of `Kernel` to the value that `by_unit` returns
    for the kernel's unit."""

    def apply(graph: KernelGraph) -> KernelGraph:
        return graph.stating(fact, by_unit(graph.units))

    return apply


def more_of_units(fact: str, by_unit: ByUnit) -> StatesKernels:
    """Returns a function that appends the entries that `by_unit` returns for a unit to the tuple
    `fact` of its `Kernel`."""

    def apply(graph: KernelGraph) -> KernelGraph:
        return graph.adding(fact, by_unit(graph.units))

    return apply
