"""`Target`: the rules of one of XLA's compilers, and the compiler itself."""

import functools
from dataclasses import dataclass, replace

from kiwi.errors import check_known
from kiwi.hlo.units import UnitGraph
from kiwi.kernels.facts import TargetFacts
from kiwi.kernels.graph import KernelGraph
from kiwi.mesh import Hardware
from kiwi.targets.rule import Rule
from kiwi.xla.compiler import Compiler


@dataclass(frozen=True, eq=False)
class Target:
    """A backend that programs are planned for.

    - `rules`: the rules in the order in which they are applied. A later rule may read the facts
      that an earlier rule states.
    - `compiler`: the compiler for devices of this backend, with its options.
    - `observed_on`: the profile of the hardware catalogue for which the witnesses of the rules are
      compiled.
    """

    rules: tuple[Rule, ...]
    compiler: Compiler
    observed_on: str

    @property
    def name(self) -> str:
        """The name of the compiler, as in `verify`, e.g. "cuda"."""
        return self.compiler.name

    def without(self, *names: str) -> "Target":
        """Returns the target without the rules of these names, to see their effect.

        **Raises:** `InvalidArgumentError` if no rule of the target has one of the names.
        """
        known_names = [rule.name for rule in self.rules]
        for name in names:
            check_known(name, known_names, "rule")
        return replace(self, rules=tuple(rule for rule in self.rules if rule.name not in names))

    def facts(self, hardware: Hardware) -> TargetFacts:
        """Returns the facts that hold for any program on the hardware."""
        return _facts(self, hardware)

    def kernels(self, units: UnitGraph, hardware: Hardware) -> KernelGraph:
        """Returns the kernels of a step's units, with the facts of all rules. The last eight
        results are cached."""
        return _kernels(self, units, hardware)


@functools.lru_cache(maxsize=64)
def _facts(target: Target, hardware: Hardware) -> TargetFacts:
    facts = TargetFacts(target.name)
    for rule in target.rules:
        if rule.states is not None:
            facts = rule.states(facts, hardware)
    return facts


@functools.lru_cache(maxsize=8)
def _kernels(target: Target, units: UnitGraph, hardware: Hardware) -> KernelGraph:
    graph = KernelGraph.plain(units, hardware, target.facts(hardware))
    for rule in target.rules:
        if rule.apply is not None:
            graph = rule.apply(graph)
    passes = tuple(rule.name for rule in target.rules)
    return KernelGraph(
        graph.units, graph.hardware, graph.facts, graph.kernels, graph.storage, passes
    )
