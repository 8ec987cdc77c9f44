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

    - `rules`: in the order in which they state facts. A later one may read the facts of an earlier
      one.
    - `compiler`: the compiler for such devices, with its options.
    - `observed_on`: the profile of the catalogue for which witnesses of rules are compiled.
    """

    rules: tuple[Rule, ...]
    compiler: Compiler
    observed_on: str

    @property
    def name(self) -> str:
        """The name, as in `verify`, e.g. "cuda"."""
        return self.compiler.name

    def without(self, *names: str) -> "Target":
        """The target without some rules, to see their effect; raises `InvalidArgumentError` for a
        name that is none of its rules'."""
        known_names = [rule.name for rule in self.rules]
        for name in names:
            check_known(name, known_names, "rule")
        return replace(self, rules=tuple(rule for rule in self.rules if rule.name not in names))

    def facts(self, hardware: Hardware) -> TargetFacts:
        """The facts that hold for any program on such devices."""
        return _facts(self, hardware)

    def kernels(self, units: UnitGraph, hardware: Hardware) -> KernelGraph:
        """The kernels of a step's units. They are kept while the step is planned."""
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
