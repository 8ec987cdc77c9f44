"""The readers of copies, in the order in which they run, and which may keep the copy of another.

In a plan a unit that is recomputed reads its operands twice, each time in the body of a loop, or of
the step. Readers of one body may share a copy: the first one makes it, later ones keep it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kiwi.hlo.units import UnitGraph
from kiwi.memory.loop_bodies import OperandRead
from kiwi.problem.copies import CopyNode, Reader, of_each_reader, that_keeps


def readers_of_copies(
    units: UnitGraph, copies: Iterable[CopyNode], kept: frozenset[OperandRead] | None
) -> Iterator[CopyNode]:
    """A node for each reader of copies that have one option, with the option to keep what the
    reader before it has made or kept. `kept`: the reads that have just this option; None leaves all
    open."""
    nodes = (_RunningReader.of(units, each) for copy in copies for each in of_each_reader(copy))
    latest: dict[tuple[Any, ...], tuple[int, _RunningReader]] = {}
    for number, reader in enumerate(sorted(nodes, key=lambda reader: reader.runs_at)):
        copy, before = reader.node, latest.get(reader.key)
        if before is None or before[1].runs_at < reader.runs_at:
            latest[reader.key] = number, reader
            is_open = kept is None or copy.operand_read in kept
            if before is not None and is_open and before[1].may_share and reader.may_share:
                copy = that_keeps(copy, before[0], always=kept is not None)
        yield copy


@dataclass(frozen=True, eq=False)
class _RunningReader:
    """A node of one reader.

    - `runs_at`: orders readers as they run; reads of one computation run at once.
    - `key`: that of all readers that might share a copy: what is moved, to which layout, in the
      body of which loop.
    - `may_share`: whether each iteration of the body has a value of its own.
    """

    node: CopyNode
    runs_at: tuple[int, ...]
    key: tuple[Any, ...]
    may_share: bool

    @classmethod
    def of(cls, units: UnitGraph, node: CopyNode) -> "_RunningReader":
        program, unit = units.graph.program, units.units[node.unit]
        runs_at: tuple[int, ...] = (node.unit,)
        around = program.loops_around(unit.loop)
        if node.reader is Reader.AGAIN:
            # See `kiwi.memory.loop_bodies`: before the unit at that time, no deeper than this one.
            (time,) = node.options[0].again
            runs_at = time - 1, len(around), node.unit
            around = program.loops_around(units.units[time].loop)[: len(around)]
        body, home = next(reversed(around), None), program.loop_of(node.value)
        spaces = [None if k is None else program.loops[k].space for k in (body, home)]
        key = node.value, node.moved.dtype, node.options[0].target, body
        is_inside = units.border(unit) is None and spaces[0] == spaces[1]
        return cls(node, runs_at, key, is_inside)
