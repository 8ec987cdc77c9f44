"""What compiled programs taught of prices: seconds by kind of unit and sharding.

A price that no rule gets right is corrected by the program that XLA made of a plan: an operand that
the partitioner gathers although the plan shards it, a kernel that computes more than it should.
Units of one kind (the same operators on the same shapes) are alike in all layers, so that one
program corrects all of them.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kiwi.mesh import TensorSharding

Layouts = tuple[TensorSharding, ...]


@dataclass(frozen=True)
class Correction:
    """Of one kind of unit.

    - `kind`: see `kiwi.problem.corrected.kind_of`; `name`: of its operator, for readers.
    - `reads`, `results`: the layouts of the strategy that is corrected; both empty: of all.
    - `seconds`: what that strategy takes beside the collectives that are planned, in all iterations
      of its loops; None where `factor` of its price says it.
    """

    kind: str
    name: str
    reads: Layouts = ()
    results: Layouts = ()
    factor: float = 1.0
    seconds: float | None = None

    @property
    def is_of_all(self) -> bool:
        """Whether it is of every strategy of the kind."""
        return not self.reads and not self.results

    def applies(self, reads: Layouts, results: Layouts) -> bool:
        """Whether it is of the strategy between such layouts."""
        return self.is_of_all or (self.reads, self.results) == (reads, results)


@dataclass(frozen=True)
class Corrections:
    """Those of one mesh; of one kind and sharding the first one counts."""

    entries: tuple[Correction, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries)

    def and_also(self, others: Iterable[Correction]) -> "Corrections":
        """With others, which replace those at hand of the same kind and sharding."""
        entries = (*others, *self.entries)
        first = {(e.kind, e.reads, e.results): e for e in reversed(entries)}
        return Corrections(tuple(e for e in entries if first[e.kind, e.reads, e.results] is e))

    def of(self, kind: str) -> tuple[Correction, ...]:
        """Those of one kind."""
        return self._by_kind.get(kind, ())

    @functools.cached_property
    def _by_kind(self) -> Mapping[str, tuple[Correction, ...]]:
        found: dict[str, tuple[Correction, ...]] = {}
        for entry in self.entries:
            found[entry.kind] = (*found.get(entry.kind, ()), entry)
        return found


NO_CORRECTIONS = Corrections()
