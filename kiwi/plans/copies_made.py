"""Which operands of a solution are moved to other layouts, and which copies are made again.

Each reader of a value reshards it for itself, unless it reads a copy that an earlier one keeps.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kiwi.hlo.program import Value
from kiwi.memory.loop_bodies import OperandRead
from kiwi.mesh import TensorSharding
from kiwi.problem.build import PlanningProblem
from kiwi.problem.solved import Solved
from kiwi.solver.problem import Load


@dataclass(frozen=True)
class Copy:
    """What is moved to another layout than the stored one, and which units of the step or of one
    loop's body read it so, in order, each once."""

    moved: Value
    stored: TensorSharding
    wanted: TensorSharding
    readers: tuple[OperandRead, ...]


def copies_made(solved: Solved) -> Iterator[Copy]:
    """The copies that first computations read and no earlier reader keeps for them."""
    layouts, planning = solved.layouts, solved.problem
    readers: dict[tuple[Value, TensorSharding, int | None], dict[int, OperandRead]] = {}
    for unit, (strategy, _) in zip(planning.units.units, solved.choices, strict=True):
        reads = zip(unit.rule.reads, strategy.reads, strict=True)
        for number, ((value, _), wanted) in enumerate(reads):
            read = OperandRead(unit.index, number)
            if layouts[value] != wanted and read not in solved.kept:
                moved = planning.rules.moved_value(planning.units, unit, value)
                readers.setdefault((moved, wanted, unit.loop), {}).setdefault(unit.index, read)
    for (moved, wanted, _), found in readers.items():
        yield Copy(moved, layouts[moved.index], wanted, tuple(found.values()))


def copies_again(
    planning: PlanningProblem, copies: Iterable[Copy]
) -> Iterator[tuple[float, tuple[Load, ...]]]:
    """What each reader behind a copy's first one pays for resharding, and the loads of that."""
    for copy in copies:
        for reader in copy.readers[1:]:
            operand = planning.operand(planning.units.units[reader.unit], copy.moved.index)
            seconds = operand.trips * operand.seconds_once([copy.stored], [copy.wanted])[0]
            yield float(seconds[0]), operand.overlap(seconds, 0 * seconds)


def without_copies_again(
    solved: Solved, copies: Iterable[Copy], loads: Mapping[tuple[int, int], float]
) -> dict[tuple[int, int], float]:
    """Loads by window and channel, less those of copies that are made again."""
    found = dict(loads)
    for _, again in copies_again(solved.problem, copies):
        for load in again:
            found[load.window, load.channel] -= float(load.amounts[0])
    return found
