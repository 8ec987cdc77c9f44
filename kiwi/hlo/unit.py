"""The unit of planning; see `kiwi.hlo.units`."""

from dataclasses import dataclass

from kiwi.hlo.graph import Phase
from kiwi.hlo.rule import ComposedRule


@dataclass(frozen=True, eq=False)
class Unit:
    """A materialised equation with its absorbed chain.

    - `equations`: the chain and, last, the materialised equation.
    - `reads`: value indices read from outside, each once.
    - `outputs`: value indices yielded.
    - `rule`: joint sharding rule; `rule.reads` are keyed by value index, `rule.results`
      follow `outputs`, `rule.operator_factors` follow `equations`.
    - `loop`: the innermost opened loop whose body it is part of.
    """

    index: int
    equations: tuple[int, ...]
    reads: tuple[int, ...]
    outputs: tuple[int, ...]
    rule: ComposedRule
    phase: Phase
    may_recompute: bool
    loop: int | None = None

    @property
    def root(self) -> int:
        """The materialised equation."""
        return self.equations[-1]
