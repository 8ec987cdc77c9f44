"""Communication, and copies to the host and back, that run while the device computes. Which
operations may overlap, and in which window of time, is explained in
docs/how_it_works/cost_model.md, "What overlaps".

A window is a loop's body, or the part of one phase between two loops. Two channels work at the same
time in a window: the device and its links. A gather is *early* if no matmul precedes it. A
reduction is *late* if no matmul reads its result. On XLA:TPU each reduction runs beside one kernel
(`kernel_seconds`). The device waits for gathers before the first matmul of a step and the first
matmul after a loop, and for reductions after the last matmul. Overlapping communication still costs
a fraction of its time (`Hardware.interference`).

Copies to the host and back have engines of their own, independent of the links. So each window
exists a second time, for computation and copies (`Overlap.copied_share`). A loop's window exists a
third time, for the copies that crowd at the end of its body (`kiwi.problem.crowded_copies`).
"""

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kiwi.hlo.graph import Phase
from kiwi.hlo.host_memory import FETCH
from kiwi.hlo.large_operators import (
    batch_factors,
    early_values,
    has_matmul,
    large_units,
    reduces_late,
)
from kiwi.hlo.loops import CARRY, SLICE
from kiwi.hlo.units import Unit, UnitGraph
from kiwi.kernels.graph import KernelGraph
from kiwi.memory.residency import Residency, last_use
from kiwi.mesh import Collective
from kiwi.mesh.collective_kinds import REDUCE_SCATTER
from kiwi.problem.crowded_copies import Crowded
from kiwi.problem.edges import OverlappingMoves
from kiwi.problem.strategies import ShardingStrategy
from kiwi.solver.problem import Load

_Runs = tuple[np.ndarray, np.ndarray]
"""Two arrays of seconds over strategies x residencies, strategy-major: the first run, and the
recomputation."""

COMPUTE, NETWORK, TO_HOST, FROM_HOST = range(4)
"""The channels of a window."""

_PHASES = tuple(Phase)


@dataclass(frozen=True, eq=False)
class Overlap:
    """The overlap in the steps of a unit graph.

    - `share`: the fraction of overlapping time that costs nothing; 0 if nothing overlaps.
    - `pipelines`: whether a matmul runs while its operands are gathered and its result is
      scattered.
    - `copied_share`: as `share`, for copies to the host and back; None if nothing may be copied.
    - `kernel_seconds`: the least seconds of each large unit, if a reduction runs only beside the
      unit behind it; None if a reduction runs beside any unit.
    - `combined_bytes`: the compiler combines reductions up to half of this size with others, and
      the device waits for them.
    - `crowded`: the units at which copies to the host and back crowd in loops.
    """

    units: UnitGraph
    share: float
    pipelines: bool
    copied_share: float | None = None
    kernel_seconds: Mapping[int, float] | None = None
    combined_bytes: int = 0
    crowded: Crowded = field(default_factory=Crowded)

    @classmethod
    def on(cls, kernels: KernelGraph, *, copies: bool) -> "Overlap":
        """Returns the overlap of a step's kernels. `copies`: whether anything may be copied to the
        host."""
        hardware, pipelines = kernels.hardware, kernels.facts.pipelines_matmuls
        copied_share = 1 - hardware.host_interference if copies else None
        return cls(kernels.units, hardware.overlapping_share, pipelines, copied_share)

    def computed(
        self, unit: Unit, seconds: np.ndarray, again: np.ndarray, residencies: Sequence[Residency]
    ) -> tuple[Load, ...]:
        """The loads of a unit's computation. `seconds` and `again` are, by strategy, the seconds of
        the first run and of a recomputation."""
        runs = _runs(seconds, residencies, again)
        loads = self._loads(COMPUTE, unit, runs)
        if self.copied_share is None:
            return loads
        is_crowded = self.crowded.is_beside(unit)
        return loads + self._beside(COMPUTE, unit, runs, residencies, is_crowded=is_crowded)

    def apart(self, unit: Unit, seconds: np.ndarray) -> tuple[Load, ...]:
        """The loads of a unit's extra computation under some pairs of options
        (`kiwi.problem.reductions_apart`)."""
        if not self.share:
            return ()
        return (Load(self._window(unit.loop, unit.index), COMPUTE, self._shared(seconds)),)

    def reduced(
        self, unit: Unit, strategies: Sequence[ShardingStrategy], residencies: Sequence[Residency]
    ) -> tuple[Load, ...]:
        """The loads of the collectives of a unit's strategies."""
        if reduces_late(self.units, unit):
            seconds = self._seconds_late(unit, strategies)
        elif self.pipelines and has_matmul(self.units, unit):
            seconds = [
                sum(
                    reduction.seconds
                    for reduction in strategy.collectives
                    if reduction.kind == REDUCE_SCATTER
                )
                for strategy in strategies
            ]
        else:
            return ()
        return self._loads(NETWORK, unit, _runs(np.array(seconds), residencies))

    def _seconds_late(self, unit: Unit, strategies: Sequence[ShardingStrategy]) -> list[float]:
        """Returns, by strategy, the seconds of late reductions that may overlap."""
        longest = 0.0 if unit.index in self._last else math.inf
        if self.kernel_seconds is not None:
            longest = min(longest, self.kernel_seconds.get(self._kernel_behind(unit), 0.0))
        return [min(longest, self._single_seconds(strategy.collectives)) for strategy in strategies]

    def _single_seconds(self, collectives: Iterable[Collective]) -> float:
        """Returns the seconds of the reductions that are not combined with others."""
        return sum(
            reduction.seconds
            for reduction in collectives
            if 2 * reduction.bytes > self.combined_bytes
        )

    def gathered(
        self, unit: Unit, value: int, once: np.ndarray, again: np.ndarray
    ) -> tuple[Load, ...]:
        """The loads of resharding an operand. `once` and `again` are the seconds for the first run
        of the reader and for its recomputation."""
        is_early = early_values(self.units)[value]
        pipelined = self.pipelines and has_matmul(self.units, unit)
        if not self.share or not (is_early or pipelined):
            return ()
        before, behind = self._operand_window(unit), self._window_again(unit)
        once = np.zeros_like(once) if is_early and unit.index in self._first else once
        return self._in_windows(NETWORK, (before, behind), once, again)

    def overlapping_moves(self, unit: Unit, value: int) -> OverlappingMoves | None:
        """The moves of an operand that overlap; None if all may.

        A later reader may keep the copy of the first reader (`kiwi.problem.kept_copies`). So its
        moves other than gathers count as overlapping. Otherwise they would count against the
        layout.
        """
        if not self.pipelines:
            return None
        batch = frozenset() if early_values(self.units)[value] else batch_factors(self.units, unit)
        reads = (dims for key, dims in unit.rule.reads if key == value)
        free_dims = (
            {dim for dim, factors in enumerate(dims) if batch.isdisjoint(factors)} for dims in reads
        )
        rank = len(self.units.graph.program.values[value].shape)
        first_reader, *_ = self.units.readers.get(value, (unit.index,))
        return OverlappingMoves(
            frozenset(range(rank)).intersection(*free_dims), first_reader != unit.index
        )

    def offloaded(
        self, unit: Unit, seconds: np.ndarray, residencies: Sequence[Residency]
    ) -> tuple[Load, ...]:
        """The loads of copying a result to the host and back. `seconds` is, by option, the time of
        one direction."""
        away, back = (seconds, 0 * seconds), (0 * seconds, seconds)
        is_crowded = self.crowded.is_among(unit)
        to_host = self._beside(TO_HOST, unit, away, residencies, is_crowded=is_crowded)
        return to_host + self._beside(FROM_HOST, unit, back, residencies)

    def copied(
        self, unit: Unit, seconds: np.ndarray, residencies: Sequence[Residency]
    ) -> tuple[Load, ...]:
        """The loads of a unit that fetches an argument from the host or stores a result there."""
        name = self.units.graph.program.equations[unit.root].name
        channel = FROM_HOST if name == FETCH else TO_HOST
        return self._beside(channel, unit, _runs(seconds, residencies), residencies)

    def _loads(self, channel: int, unit: Unit, runs: _Runs) -> tuple[Load, ...]:
        if not self.share or not runs[0].any():
            return ()
        windows = self._window(unit.loop, unit.index), self._window_again(unit)
        return self._in_windows(channel, windows, *runs)

    def _beside(
        self,
        channel: int,
        unit: Unit,
        runs: _Runs,
        residencies: Sequence[Residency],
        *,
        is_crowded: bool = False,
    ) -> tuple[Load, ...]:
        """Returns the loads in the windows of computation and copies. `is_crowded`: whether the
        first run belongs to the window of crowded copies."""
        count = self._window_between(len(self.units.units) - 1, _PHASES[-1]) + 1
        window, later = count + self._window(unit.loop, unit.index), self._window_again(unit)
        once, again = runs
        crowded = np.resize(self.crowded.until(later, residencies), len(again))
        pieces = (
            (window + count * is_crowded, once),
            (count + later, np.where(crowded, 0.0, again)),
            (2 * count + later, np.where(crowded, again, 0.0)),
        )
        share = self.copied_share or 0.0
        return tuple(
            Load(piece_window, channel, share * part) for piece_window, part in pieces if part.any()
        )

    def _in_windows(
        self, channel: int, windows: tuple[int, int], once: np.ndarray, again: np.ndarray
    ) -> tuple[Load, ...]:
        pairs = zip(windows, (once, again), strict=True)
        return tuple(
            Load(window, channel, self._shared(seconds))
            for window, seconds in pairs
            if seconds.any()
        )

    def _shared(self, seconds: np.ndarray) -> np.ndarray:
        """Returns the part of the seconds that may cost nothing. Equal layers share one array."""
        if id(seconds) not in self._known:
            self._known[id(seconds)] = seconds, self.share * seconds
        return self._known[id(seconds)][1]

    @functools.cached_property
    def _known(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        return {}

    def _operand_window(self, unit: Unit) -> int:
        """Returns the window in which a unit's operands are resharded."""
        if self.units.border(unit) not in (CARRY, SLICE):
            return self._window(unit.loop, unit.index)
        assert unit.loop is not None
        loops, spans = self.units.graph.program.loops, self.units.spans
        return self._window(loops[unit.loop].parent, spans[unit.loop][0])

    def _window(self, loop: int | None, time: int) -> int:
        """Returns the window of a loop's body, or of a time outside of loops."""
        if loop is not None:
            return loop
        return self._window_between(time, self.units.units[time].phase)

    def _window_between(self, time: int, phase: Phase) -> int:
        """Returns the window of a phase between the two loops around a time."""
        count = len(self.units.graph.program.loops)
        return count + len(_PHASES) * self._loops_before[time] + _PHASES.index(phase)

    def _window_again(self, unit: Unit) -> int:
        """Returns the window in which a unit is recomputed. For a unit in a loop, it is the last
        loop with the same index space; otherwise it is the window of the last reader in the
        backward pass."""
        if unit.loop is None:
            return self._window_between(last_use(self.units, unit), Phase.BACKWARD)
        loops = self.units.graph.program.loops
        space = loops[unit.loop].space
        return max(loop.index for loop in loops if loop.space == space)

    @functools.cached_property
    def _loops_before(self) -> tuple[int, ...]:
        """The number of loops before each unit."""
        loops, spans = self.units.graph.program.loops, self.units.spans
        ends = {spans[k.index][1] for k in loops if k.parent is None and k.index in spans}
        return tuple(itertools.accumulate(unit.index in ends for unit in self.units.units))

    @functools.cached_property
    def _first(self) -> frozenset[int]:
        """The units outside of loops that no large unit precedes since the start of the step or the
        end of the loop before them. The first large unit is among them."""
        return frozenset(self._until_large(self.units.units))

    @functools.cached_property
    def _last(self) -> frozenset[int]:
        """The units outside of loops that no large unit follows until the end of the step or the
        start of the next loop. The last large unit is among them."""
        return frozenset(self._until_large(reversed(self.units.units)))

    def _kernel_behind(self, unit: Unit) -> int:
        """Returns the unit behind a unit, without small units of the update, if it is large, in the
        same loop, and does not read the unit's result; otherwise -1."""
        following = self.units.units[unit.index + 1 :]
        is_large = large_units(self.units)
        next_unit = next(
            (
                candidate
                for candidate in following
                if is_large[candidate.index] or candidate.phase != Phase.UPDATE
            ),
            None,
        )
        if next_unit is None or next_unit.loop != unit.loop or not is_large[next_unit.index]:
            return -1
        return next_unit.index if set(unit.outputs).isdisjoint(next_unit.reads) else -1

    def _until_large(self, units: Iterable[Unit]) -> Iterator[int]:
        """Yields the units outside of loops that no large unit precedes in the given order. The
        count starts again behind each loop."""
        is_behind_large = False
        for unit in units:
            if unit.loop is not None:
                is_behind_large = False
                continue
            if not is_behind_large:
                yield unit.index
            is_behind_large = is_behind_large or large_units(self.units)[unit.index]


def _runs(
    seconds: np.ndarray, residencies: Sequence[Residency], again: np.ndarray | None = None
) -> _Runs:
    recomputes = np.array([float(residency.recomputes) for residency in residencies])
    once = seconds.repeat(len(recomputes))
    return once, np.outer(seconds if again is None else again, recomputes).ravel()
