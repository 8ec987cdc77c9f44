"""The memory of a unit under a sharding strategy, on one device, for all planners."""

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
    """Local bytes of one unit.

    - `result_bytes`: of all results together.
    - `workspace`: of each buffer that it needs while it runs, including copies of operands that the
      compiler makes. `workspace_shared`: without these copies, which are left out if units
      recomputed for one reader share its point of time.
    - `from_start`: buffers that the compiler holds from the start of the step until the unit runs,
      or until it has run, in indices of units. `written_over_bytes`: those of them that the result
      is written into.
    - `held_until`: the unit that has to run as well before result and workspace are free, if there
      is one.
    """

    result_bytes: int
    workspace: tuple[int, ...]
    workspace_shared: tuple[int, ...]
    from_start: tuple[Interval, ...]
    written_over_bytes: int = 0
    held_until: int | None = None

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all buffers together."""
        return sum(self.workspace)

    @property
    def beside_bytes(self) -> int:
        """The buffers held from the start that the result is not written into."""
        return sum(interval.bytes for interval in self.from_start) - self.written_over_bytes

    def buffers(self, ranges: LiveRanges, unit: Unit, runs: Sequence[Run]) -> tuple[Buffer, ...]:
        """The unit's buffers in points of time of `ranges`; `runs` are its own."""
        shift = ranges.first_run[unit.index] - unit.index
        sizes = (self.result_bytes, self.workspace, self.workspace_shared)
        early = (Buffer(0, e.end + shift, e.bytes, "result", unit.index) for e in self.from_start)
        return (*ranges.of_unit(unit, runs, *sizes, self.held_until), *early)


def unit_memory(kernels: KernelGraph, unit: Unit, strategy: ShardingStrategy) -> UnitMemory:
    """The sizes of a unit's kernel under a strategy."""
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
    """By unit, the workspace lent to a library while others are recomputed for it one after
    another, unless the unit itself needs as much. `again`: the recomputed units, and what they may
    be recomputed for, None for nothing."""

    def lent_bytes(unit: int) -> int:
        return kernels[unit].workspace.lent_bytes

    pairs = ((lent_bytes(unit.index), times) for unit, times in again)
    lent = {t: size for size, times in pairs if size for t in times if t is not None}
    readers = (t for t in lent if not lent_bytes(t))
    return {t: Buffer(t, t + 1, lent[t], "result", t) for t in readers}
