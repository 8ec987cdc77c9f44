"""`Rule`: one thing that a compiler does with a program, with its reason and its evidence.

A rule is one file of `kiwi.targets.rules`. It states facts of the target (`states`), of a program's
kernels (`apply`), or both. Nothing else in Kiwi asks for the compiler: the problem, the memory
account and the emission read the facts.
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
"""Adds facts that hold for any program on such devices."""

StatesKernels = Callable[[KernelGraph], KernelGraph]
"""Adds facts about the kernels of a program."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One thing that a compiler does.

    - `name`: unique among the rules of all targets.
    - `does`: what it does, in a sentence or two.
    - `component`: the pass or library that does it, by XLA's name.
    - `observed`: the versions in which it was observed, e.g. "jax 0.10.2, H100".
    - `evidence`: where it is shown: tests and benchmarks of this repository.
    - `witness`: a small program whose compiled module shows it.
    - `states`, `apply`: see the types; None for nothing.
    - `limits`: what the rule is known not to cover; empty for nothing known.
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
    """States these facts of `TargetFacts`, whatever the hardware is."""

    def states(known: TargetFacts, hardware: Hardware) -> TargetFacts:
        return replace(known, **facts)

    return states


def fusing(**entries: Any) -> StatesFacts:
    """Adds entries to `TargetFacts.fusion`. Tuples are appended, flags are set."""

    def states(known: TargetFacts, hardware: Hardware) -> TargetFacts:
        fusion = known.fusion
        changes = {
            name: (*getattr(fusion, name), *entry) if isinstance(entry, tuple) else entry
            for name, entry in entries.items()
        }
        return replace(known, fusion=replace(fusion, **changes))

    return states


ByUnit = Callable[[UnitGraph], Mapping[int, Any]]


def of_units(fact: str, by_unit: ByUnit) -> StatesKernels:
    """States one fact of kernels: `by_unit` gives it by index of the unit."""

    def apply(graph: KernelGraph) -> KernelGraph:
        return graph.stating(fact, by_unit(graph.units))

    return apply


def more_of_units(fact: str, by_unit: ByUnit) -> StatesKernels:
    """Adds entries to a fact of kernels that is a tuple: `by_unit` gives them by index of the
    unit."""

    def apply(graph: KernelGraph) -> KernelGraph:
        return graph.adding(fact, by_unit(graph.units))

    return apply
