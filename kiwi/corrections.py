"""Prices corrected by compiled programs, by kind of unit and sharding.

XLA's program of a plan may take longer than its price: the partitioner gathers an operand that the
plan shards, or a kernel computes more than it should. The program's own seconds then replace the
price. Units of one kind (the same operators on the same shapes) are alike in all layers, so one
program corrects them all.

A program may also hide less communication than its plan counts on. That is corrected for all
operators together.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kiwi.mesh import TensorSharding

Layouts = tuple[TensorSharding, ...]


@dataclass(frozen=True)
class Correction:
    """A corrected price of one kind of unit.

    - `kind`: see `kiwi.problem.corrected.kind_of`. `name`: its operator, for readers.
    - `reads`, `results`: the layouts of the corrected strategy. Both are empty if all strategies
      are corrected.
    - `seconds`: the time of that strategy without the planned collectives, over all iterations of
      its loops. None if `factor` multiplies the price instead.
    """

    kind: str
    name: str
    reads: Layouts = ()
    results: Layouts = ()
    factor: float = 1.0
    seconds: float | None = None

    @property
    def is_of_all(self) -> bool:
        """Whether every strategy of the kind is corrected."""
        return not self.reads and not self.results

    def applies(self, reads: Layouts, results: Layouts) -> bool:
        """Whether a strategy between these layouts is corrected."""
        return self.is_of_all or (self.reads, self.results) == (reads, results)


@dataclass(frozen=True)
class Corrections:
    """The corrections on one mesh.

    - `entries`: if two are of one kind and sharding, the first one counts.
    - `overlap`: the part of the overlap of communication and computation that a plan may count on.
    """

    entries: tuple[Correction, ...] = ()
    overlap: float = 1.0

    def __bool__(self) -> bool:
        return self != NO_CORRECTIONS

    def and_also(self, others: Iterable[Correction]) -> "Corrections":
        """These corrections with others added. A new one replaces an old one of the same kind and
        sharding."""
        entries = (*others, *self.entries)
        first = {(e.kind, e.reads, e.results): e for e in reversed(entries)}
        kept = tuple(e for e in entries if first[e.kind, e.reads, e.results] is e)
        return Corrections(kept, self.overlap)

    def of(self, kind: str) -> tuple[Correction, ...]:
        """The corrections of one kind."""
        return self._by_kind.get(kind, ())

    @functools.cached_property
    def _by_kind(self) -> Mapping[str, tuple[Correction, ...]]:
        found: dict[str, tuple[Correction, ...]] = {}
        for entry in self.entries:
            found[entry.kind] = (*found.get(entry.kind, ()), entry)
        return found


NO_CORRECTIONS = Corrections()
