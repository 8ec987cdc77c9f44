"""The memory of a unit under a sharding strategy on one device. All planners use it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kiwi.hlo.units import Unit
from kiwi.interval import Interval
from kiwi.kernels.graph import KernelGraph
from kiwi.memory.live_ranges import LiveRanges, Run
from kiwi.memory.timeline import Buffer
from kiwi.problem.strategies import ShardingStrategy


@dataclass(frozen=True)
class UnitMemory:
    """The local bytes of one unit.

    - `result_bytes`: the bytes of all results together.
    - `workspace`: the bytes of each buffer that the unit needs while it runs, including copies of
      operands that the compiler makes.
    - `workspace_shared`: `workspace` without these copies. It counts for units that are recomputed
      for one reader and share the reader's point of time.
    - `from_start`: buffers that the compiler holds from the start of the step until the unit runs,
      or until it has run. Times are indices of units.
    - `written_over_bytes`: the bytes of the buffers in `from_start` that the result is written
      into.
    - `held_until`: the unit that has to run before result and workspace are free; None if they do
      not wait for another unit.
    """

    result_bytes: int
    workspace: tuple[int, ...]
    workspace_shared: tuple[int, ...]
    from_start: tuple[Interval, ...]
    written_over_bytes: int = 0
    held_until: int | None = None

    @property
    def workspace_bytes(self) -> int:
        """The bytes of all buffers of workspace together."""
        return sum(self.workspace)

    @property
    def beside_bytes(self) -> int:
        """The bytes held from the start that the result is not written into."""
        return sum(interval.bytes for interval in self.from_start) - self.written_over_bytes

    def buffers(self, ranges: LiveRanges, unit: Unit, runs: Sequence[Run]) -> tuple[Buffer, ...]:
        """The unit's buffers, in the points of time of `ranges`. `runs` are the unit's runs."""
        shift = ranges.first_run[unit.index] - unit.index
        sizes = (self.result_bytes, self.workspace, self.workspace_shared)
        early = (
            Buffer(0, interval.end + shift, interval.bytes, "result", unit.index)
            for interval in self.from_start
        )
        return (*ranges.of_unit(unit, runs, *sizes, self.held_until), *early)


def unit_memory(kernels: KernelGraph, unit: Unit, strategy: ShardingStrategy) -> UnitMemory:
    """Returns the memory of a unit's kernel under a strategy."""
    kernel = kernels[unit.index]
    from_start = tuple(held.interval(strategy.result_bytes) for held in kernel.held_early)
    return UnitMemory(
        strategy.result_bytes,
        strategy.buffers_while_running,
        strategy.own_buffers,
        from_start,
        sum(interval.bytes for interval in from_start if interval.end == unit.index),
        kernel.sums_behind if strategy.collectives else None,
    )


def lent_again(
    kernels: KernelGraph, again: Iterable[tuple[Unit, Iterable[int | None]]]
) -> Mapping[int, Buffer]:
    """Returns, by reader, the workspace that the compiler lends to libraries while units are
    recomputed for the reader. A reader that is lent workspace itself has no entry.

    `again`: each unit, and the readers that it may be recomputed for; None for no recomputation.
    """

    def lent_bytes(unit: int) -> int:
        return kernels[unit].workspace.lent_bytes

    pairs = ((lent_bytes(unit.index), times) for unit, times in again)
    lent = {reader: size for size, times in pairs if size for reader in times if reader is not None}
    readers = (reader for reader in lent if not lent_bytes(reader))
    return {
        reader: Buffer(reader, reader + 1, lent[reader], "result", reader) for reader in readers
    }
