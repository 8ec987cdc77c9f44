"""Prices that compiled programs correct, by kind of unit and sharding.

XLA's program of a plan may take longer than the plan's price, for example because the partitioner
gathers an operand that the plan shards, or because a kernel computes more than it should. The
program's own seconds then replace the price. Units of one kind (the same operators on the same
shapes) are alike in all layers, so one program corrects them all.

A program may also hide less communication than its plan assumes. One factor corrects this for all
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

    - `kind`: the digest of the kind (`kiwi.problem.corrected.kind_of`).
    - `name`: the kind's operator, for readers.
    - `reads`, `results`: the layouts of the corrected strategy. Both are empty if all strategies
      are corrected.
    - `factor`: multiplies the price if `seconds` is None.
    - `seconds`: the time of the strategy without the planned collectives, over all iterations of
      its loops; None if `factor` multiplies the price instead.
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
        """Whether a strategy with these layouts is corrected."""
        return self.is_of_all or (self.reads, self.results) == (reads, results)


@dataclass(frozen=True)
class Corrections:
    """The corrections on one mesh.

    - `entries`: the corrected prices. Of two for the same kind and sharding, the first counts.
    - `overlap`: the fraction of the overlap of communication and computation that a plan may
      assume.
    """

    entries: tuple[Correction, ...] = ()
    overlap: float = 1.0

    def __bool__(self) -> bool:
        return self != NO_CORRECTIONS

    def and_also(self, others: Iterable[Correction]) -> "Corrections":
        """These corrections with `others` added. A new correction replaces an old one for the same
        kind and sharding."""
        entries = (*others, *self.entries)
        newest = {(entry.kind, entry.reads, entry.results): entry for entry in reversed(entries)}
        unique = tuple(
            entry for entry in entries if newest[entry.kind, entry.reads, entry.results] is entry
        )
        return Corrections(unique, self.overlap)

    def of(self, kind: str) -> tuple[Correction, ...]:
        """The corrections of one kind."""
        return self._by_kind.get(kind, ())

    @functools.cached_property
    def _by_kind(self) -> Mapping[str, tuple[Correction, ...]]:
        entries_of_kind: dict[str, tuple[Correction, ...]] = {}
        for entry in self.entries:
            entries_of_kind[entry.kind] = (*entries_of_kind.get(entry.kind, ()), entry)
        return entries_of_kind


NO_CORRECTIONS = Corrections()
