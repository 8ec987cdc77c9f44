"""A schedule's steps by the loop that runs them: a step of the program is a block of its own.

A step that computes a unit a second time runs where the unit before which it stands runs, but no
deeper in loops than the unit itself: what the iterations share is computed again before the loop.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from kiwi.hlo.units import UnitGraph


@dataclass(frozen=True)
class Step:
    """One computation: its position in the schedule, and the unit's index."""

    position: int
    unit: int
    is_again: bool


@dataclass(frozen=True)
class Block:
    """What one loop runs in each iteration, in order; the whole step if `loop` is None."""

    loop: int | None
    items: tuple["Step | Block", ...]

    def steps(self) -> Iterator[Step]:
        """All steps, those of inner loops included."""
        for item in self.items:
            if isinstance(item, Block):
                yield from item.steps()
            else:
                yield item


def blocks(units: UnitGraph, steps: Sequence[int]) -> Block:
    """The steps of a schedule in blocks. Loops' steps lie together."""
    chains = _chains(units, steps)
    seen: set[int] = set()
    listed = []
    for position, (unit, chain) in enumerate(zip(steps, chains, strict=True)):
        listed.append((Step(position, unit, unit in seen), chain))
        seen.add(unit)
    return Block(None, tuple(_items(listed, 0)))


def _chains(units: UnitGraph, steps: Sequence[int]) -> list[tuple[int, ...]]:
    """For each step the loops that it runs in, outermost first."""
    around = units.graph.program.loops_around
    first: dict[int, int] = {}
    for position, unit in enumerate(steps):
        first.setdefault(unit, position)
    found: list[tuple[int, ...]] = []
    here: tuple[int, ...] = ()
    for position in range(len(steps) - 1, -1, -1):
        unit = units.units[steps[position]]
        if first[unit.index] == position:
            here = around(unit.loop)
            found.append(here)
        else:
            found.append(here[: len(around(unit.loop))])
    return found[::-1]


def _items(steps: Sequence[tuple[Step, tuple[int, ...]]], depth: int) -> Iterator[Step | Block]:
    position = 0
    while position < len(steps):
        step, chain = steps[position]
        if len(chain) == depth:
            yield step
            position += 1
            continue
        end = position
        while end < len(steps) and steps[end][1][depth : depth + 1] == chain[depth : depth + 1]:
            end += 1
        yield Block(chain[depth], tuple(_items(steps[position:end], depth + 1)))
        position = end


@dataclass(frozen=True)
class Flow:
    """Which computation of a value each step reads.

    - `source[k][v]`: the position of the step that computed what step k reads of value v as it is
      stored, -1 for arguments and constants.
    - `last_read[v, k]`: the last position that reads what step k computed of v; the number of
      steps for results of the function.
    """

    source: tuple[dict[int, int], ...]
    last_read: dict[tuple[int, int], int]


def flow(
    units: UnitGraph, steps: Sequence[int], kept_copies: Set[tuple[int, int]] = frozenset()
) -> Flow:
    """Follows every value from its latest computation to its readers.

    `kept_copies`: what is read of an earlier reader's copy instead, see `Execution`.
    """
    computed: dict[int, int] = {}
    source: list[dict[int, int]] = []
    seen: set[int] = set()
    last: dict[tuple[int, int], int] = {}
    for position, index in enumerate(steps):
        unit = units.units[index]
        kept = frozenset() if index in seen else kept_copies
        seen.add(index)
        pairs = enumerate(unit.rule.reads)
        reads = {v: computed.get(v, -1) for read, (v, _) in pairs if (index, read) not in kept}
        source.append(reads)
        last.update(((v, k), position) for v, k in reads.items())
        computed.update(dict.fromkeys(unit.outputs, position))
    results = units.graph.program.result_values
    last.update(((v, computed[v]), len(steps)) for v in results if v in computed)
    return Flow(tuple(source), last)
