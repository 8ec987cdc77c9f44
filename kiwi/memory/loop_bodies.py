"""The steps of a schedule, grouped by the loop in which they run, and the dataflow between them.

A step that recomputes a unit runs in the loop of the next unit that runs for the first time, but no
deeper than the recomputed unit itself. So a value that all iterations share is recomputed before
the loop.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from kiwi.hlo.units import UnitGraph


class OperandRead(NamedTuple):
    """A read of an operand: entry `number` of a unit's `rule.reads`, in the first computation of
    the unit or, if `is_again`, in the second."""

    unit: int
    number: int
    is_again: bool = False


@dataclass(frozen=True)
class ScheduledUnit:
    """One computation of a unit.

    - `position`: the index in the schedule. `unit`: the unit's index.
    - `is_again`: whether the unit has run before.
    - `is_fetched`: whether the result is fetched from the host instead of computed.
    """

    position: int
    unit: int
    is_again: bool
    is_fetched: bool = False


@dataclass(frozen=True)
class LoopBody:
    """The steps of one iteration of a loop, in order, with the bodies of inner loops. It is the
    whole step if `loop` is None."""

    loop: int | None
    items: tuple["ScheduledUnit | LoopBody", ...]

    def steps(self) -> Iterator[ScheduledUnit]:
        """Yields all steps, including the steps of inner loops."""
        for item in self.items:
            if isinstance(item, LoopBody):
                yield from item.steps()
            else:
                yield item


def loop_bodies(
    units: UnitGraph, steps: Sequence[int], fetched: Set[int] = frozenset()
) -> LoopBody:
    """Returns the whole step as a body.

    - `steps`: the unit of each step. The units of a loop must be contiguous.
    - `fetched`: the units whose second computation is a fetch.
    """
    chains = loops_of_steps(units, steps)
    seen: set[int] = set()
    listed = []
    for position, (unit, chain) in enumerate(zip(steps, chains, strict=True)):
        is_again = unit in seen
        step = ScheduledUnit(position, unit, is_again, is_again and unit in fetched)
        listed.append((step, chain))
        seen.add(unit)
    return LoopBody(None, tuple(_items(listed, 0)))


def loops_of_steps(units: UnitGraph, steps: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns, for each step, the loops around it, outermost first."""
    around = units.graph.program.loops_around
    first: dict[int, int] = {}
    for position, unit in enumerate(steps):
        first.setdefault(unit, position)
    loops: list[tuple[int, ...]] = []
    loops_here: tuple[int, ...] = ()
    for position in range(len(steps) - 1, -1, -1):
        unit = units.units[steps[position]]
        if first[unit.index] == position:
            loops_here = around(unit.loop)
            loops.append(loops_here)
        else:
            loops.append(loops_here[: len(around(unit.loop))])
    return loops[::-1]


def _items(
    steps: Iterable[tuple[ScheduledUnit, tuple[int, ...]]], depth: int
) -> Iterator[ScheduledUnit | LoopBody]:
    for inner, group in groupby(steps, key=lambda entry: entry[1][depth : depth + 1]):
        if inner:
            yield LoopBody(inner[0], tuple(_items(group, depth + 1)))
        else:
            yield from (step for step, _ in group)


@dataclass(frozen=True)
class Dataflow:
    """The computation of each value that each step reads.

    - `source[k][v]`: the position of the step whose copy of value v step k reads, from its stored
      layout; -1 for arguments and constants. A step that fetches v reads v.
    - `last_read[v, k]`: the position of the last step that reads the copy of v that step k
      computed. Fetches from the host do not count. It is the number of steps for results of the
      function.
    """

    source: tuple[dict[int, int], ...]
    last_read: dict[tuple[int, int], int]


def dataflow(
    units: UnitGraph,
    steps: Sequence[int],
    kept_copies: Set[OperandRead] = frozenset(),
    fetched: Set[int] = frozenset(),
) -> Dataflow:
    """Returns the dataflow of a schedule. Each step reads the latest copy of a value.

    - `steps`: the unit of each step.
    - `kept_copies`: the operands that are read from an earlier reader's resharded copy.
    - `fetched`: the units whose second computation is a fetch, see `Execution`.
    """
    computed: dict[int, int] = {}
    source: list[dict[int, int]] = []
    seen: set[int] = set()
    last: dict[tuple[int, int], int] = {}
    for position, index in enumerate(steps):
        unit = units.units[index]
        if index in seen and index in fetched:
            source.append({v: computed[v] for v in unit.outputs})
            computed.update(dict.fromkeys(unit.outputs, position))
            continue
        is_again = index in seen
        seen.add(index)
        reads = {
            v: computed.get(v, -1)
            for read, (v, _) in enumerate(unit.rule.reads)
            if OperandRead(index, read, is_again) not in kept_copies
        }
        # Operands that the operator ignores are not part of its rule.
        ruled = {v for v, _ in unit.rule.reads}
        reads.update((v, computed.get(v, -1)) for v in unit.reads if v not in ruled)
        source.append(reads)
        last.update(((v, k), position) for v, k in reads.items())
        computed.update(dict.fromkeys(unit.outputs, position))
    results = units.graph.program.result_values
    last.update(((v, computed[v]), len(steps)) for v in results if v in computed)
    return Dataflow(tuple(source), last)
