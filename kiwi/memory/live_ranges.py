"""The live ranges of values: intervals of points of time, from the times at which values are
computed and read.

1. An argument that is not donated is held throughout the step.
2. A donated argument is held until the result that takes over its buffer is computed. The result is
   held from then on.
3. Any other result of the function is held throughout: XLA allocates it before the step starts, and
   puts nothing else there.
4. Any other value is held from its computation through its last reader. If that reader is
   elementwise (`kiwi.hlo.in_place`), it writes its result over the value, which then ends just
   before. The reader must be the next unit, or the value must be the result of a library call.
   Other readers read the value behind a barrier (`kiwi.emit.barriers`), and XLA does not write over
   such operands.
5. A unit also holds its workspace while it runs. Units that are recomputed for one reader run one
   after the other. If they share the reader's point of time, their many copies of operands do not
   count, and a library's workspace counts once. An elementwise unit that runs again only for
   another elementwise unit is fused with it.
6. A value in host memory (`kiwi.hlo.host_memory`) takes no device memory. A value fetched from host
   memory is held as in 4. Values that the plan offloads (`kiwi.memory.residency`) take host memory
   from the copy to the fetch.

In the body of an opened loop (`kiwi.hlo.loops`) the same rules hold within one iteration, and also:

7. A value that a loop reads from outside is held until the last iteration ends.
8. A value that is read outside of the loop that computes it, by another loop or as a result, is
   stacked: it takes its bytes times the number of iterations, from before the first iteration.
9. The start value of an iteration is held in one place for the whole loop. A `while` begins in the
   buffer of the initial value. The end value of an iteration is written there, unless the iteration
   still reads the start value when the end value is computed.
10. An element of a stack is copied for each reader, while the reader runs.

A conditional is a loop of one iteration around its branches. Each branch has its own points of
time, so the peak is the largest peak of a branch.

11. The results of a conditional are held from before the first branch, and the results of a branch
    are written there. The same holds for a value that is read outside of its branch, since it is a
    result of the conditional, too.

A point of time belongs to a unit, or to a step of a schedule (`kiwi.problem.scheduled`).
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from kiwi.hlo.equation_kinds import is_map
from kiwi.hlo.in_place import is_of_library
from kiwi.hlo.loops import CARRY, JOIN, SLICE, STACK, LoopKind
from kiwi.hlo.units import Unit, UnitGraph, loop_spans
from kiwi.interval import Interval
from kiwi.memory.residency import Residency, UnitResidency, residencies
from kiwi.memory.timeline import Buffer

_CONDITIONAL = frozenset({LoopKind.SWITCH, LoopKind.BRANCH})

Overwritable = Callable[[Unit], tuple[int, ...]]
"""A function that returns the values over which a compiler may let a unit write its result."""


@dataclass(frozen=True)
class Run:
    """One computation of a unit.

    - `start`: the point of time of the computation.
    - `end`: the point of its last reader. `uses`: the points of all readers of the unit.
    - `overwritten_by`: the unit that reads the result at `end` and writes its own result over it;
      -1 for none.
    - `shares_point`: whether other units run at the same point of time.
    - `is_fetched`: whether the value is copied back from the host instead of computed.
    - `is_fused`: whether the unit runs in the kernel of its only reader.
    """

    start: int
    end: int
    uses: tuple[int, ...] = ()
    overwritten_by: int = -1
    shares_point: bool = False
    is_fetched: bool = False
    is_fused: bool = False


@dataclass(frozen=True, eq=False)
class LiveRanges:
    """The rules of this module for units that run at points of time.

    - `loops`: for each point of time, the loops around it, outermost first.
    - `first_run`: for each unit, the point of time of its first computation.
    """

    units: UnitGraph
    loops: tuple[tuple[int, ...], ...]
    first_run: Sequence[int]

    @classmethod
    def of(cls, units: UnitGraph) -> "LiveRanges":
        """Returns the live ranges with one point of time for each unit, in order. A recomputation
        shares the point of its first reader."""
        around = units.graph.program.loops_around
        return cls(units, tuple(around(u.loop) for u in units.units), range(len(units.units)))

    @property
    def horizon(self) -> int:
        """The number of points of time."""
        return max(1, len(self.loops))

    @functools.cached_property
    def spans(self) -> dict[int, tuple[int, int]]:
        """The points of time of each loop, half-open."""
        return loop_spans(self.loops)

    def of_argument(self, argument: int, local_bytes: int) -> tuple[Buffer, ...]:
        """Returns the buffers of an argument (rules 1, 2 and 6). `argument`: its value's index."""
        if argument in self.units.graph.program.host_values:
            return ()
        end = self._end_of_argument.get(argument, self.horizon)
        return (Buffer(0, end, local_bytes, "argument", argument),)

    @functools.cached_property
    def _end_of_argument(self) -> dict[int, int]:
        """For each donated argument, the time at which its buffer passes to a result (rule 2)."""
        pairs = self.units.aliased_results.items()
        return {source: self.first_run[self.units.producer[result]] for result, source in pairs}

    def operands_held(self, unit: int) -> tuple[int, int]:
        """Returns the time during which a unit holds its operands, half-open: while it runs, or, if
        loops take elements of them, until the last of these loops ends."""
        reader = self.units.units[unit]
        if self.units.border(reader) != SLICE or reader.loop is None:
            return (self.first_run[unit], self.first_run[unit] + 1)
        uses = (self.first_run[use.time] for use in self.units.uses[unit])
        outer = self.units.graph.program.loops[reader.loop].parent
        last = max(uses, default=self.first_run[unit])
        return self.spans[reader.loop][0], self.until(outer, last) + 1

    def of_unit(
        self,
        unit: Unit,
        runs: Sequence[Run],
        result_bytes: int,
        workspace: Sequence[int],
        workspace_shared: Sequence[int],
        held_until: int | None = None,
    ) -> tuple[Buffer, ...]:
        """Returns the buffers of a unit's result and workspace (rules 3 to 11).

        - `runs`: the unit's computations.
        - `workspace`: the bytes of each workspace buffer of a computation.
        - `workspace_shared`: the same for a computation that shares its point of time.
        - `held_until`: another unit, until whose computation the result and the workspace are held.
        """
        owner = ("result", unit.index)
        overwritten_by = {run.end: run.overwritten_by for run in runs}
        free = 0 if held_until is None else self.first_run[held_until] + 1
        buffers = [
            Buffer(start, max(end, free), count * result_bytes, *owner, overwritten_by.get(end, -1))
            for start, end, count in self._held(unit, runs)
            if end > start
        ]
        for run in (run for run in runs if not run.is_fetched):
            sizes = workspace_shared if run.shares_point else workspace
            last = max(run.start + 1, free)
            buffers += [Buffer(run.start, last, size, *owner) for size in sizes]
        return tuple(buffers)

    def _held(self, unit: Unit, runs: Sequence[Run]) -> list[tuple[int, int, int]]:
        """Returns the half-open intervals in which the unit's results are held, as triples (start,
        end, count). `count` is the number of iterations whose results are held."""
        if any(output in self.units.graph.program.host_values for output in unit.outputs):
            return []
        if self._is_fresh_result(unit):
            return [(0, self.horizon, 1)]
        border = self.units.border(unit)
        if border == SLICE:
            return [(time, time + 1, 1) for run in runs for time in run.uses]
        if border == STACK:
            assert unit.loop is not None
            outer = self.units.graph.program.loops[unit.loop].parent
            last = max(runs[-1].end, self.first_run[unit.index])
            return [(self.spans[unit.loop][0], self.until(outer, last) + 1, 1)]
        if border == JOIN:
            switch = self.units.graph.program.equations[unit.root].jaxpr_eqn.params["loop"]
            return [(self.spans[switch][0], self.until(unit.loop, runs[-1].end) + 1, 1)]
        return [held for run in runs if not run.is_fused for held in self._of_run(unit, run)]

    def _of_run(self, unit: Unit, run: Run) -> Iterator[tuple[int, int, int]]:
        """Yields the intervals of one computation's result, as `_held` (rules 4, 7, 8, 9 and
        11)."""
        program, start, end = self.units.graph.program, run.start, run.end
        around = self.loops[start][: len(program.loops_around(unit.loop))]
        home = around[-1] if around else None
        first, behind = self.spans[home] if home is not None else (0, self.horizon)
        left_loops = [k for k in around if not self.spans[k][0] <= end < self.spans[k][1]]
        within = [time for time in run.uses if start <= time < behind]
        last = end if not left_loops else max(within, default=start)
        if left_loops and all(program.loops[k].kind in _CONDITIONAL for k in left_loops):
            pass  # The result is written to the conditional's result.
        elif unit.index in self._handed_on and start == self.first_run[unit.index]:
            pass  # The result is written to the carry.
        elif self.units.border(unit) == CARRY and not run.is_fetched:
            yield first, behind, 1
        else:
            after_reader = 0 if run.overwritten_by >= 0 else 1
            yield start, max(self.until(home, last) + after_reader, start + 1), 1
        if left_loops:
            count = prod(program.loops[k].length for k in left_loops)
            outer = program.loops[left_loops[0]].parent
            yield self.spans[left_loops[0]][0], self.until(outer, end) + 1, count

    def on_host(self, unit: Unit, fetch_at: int, result_bytes: int) -> Interval:
        """Returns the host memory of a unit's result that is fetched at `fetch_at`. A result in a
        loop holds memory for all iterations, until the loop that fetches them ends."""
        program, loop = self.units.graph.program, unit.loop
        if loop is None:
            return Interval(unit.index, fetch_at + 1, result_bytes)
        end = self.until(program.loops[loop].parent, fetch_at) + 1
        return Interval(self.spans[loop][0], end, program.loops[loop].length * result_bytes)

    def until(self, loop: int | None, time: int) -> int:
        """Returns the last time at which a value of `loop` is held for a reader at `time` (rule
        7)."""
        chain, depth = self.loops[time], len(self.units.graph.program.loops_around(loop))
        return time if len(chain) <= depth else self.spans[chain[depth]][1] - 1

    def _is_fresh_result(self, unit: Unit) -> bool:
        """Whether a unit yields a result of the function that takes over no argument's buffer (rule
        3). One such output of several suffices."""
        results = self.units.graph.program.result_values
        return any(
            output in results and output not in self.units.aliased_results
            for output in unit.outputs
        )

    @functools.cached_property
    def _handed_on(self) -> frozenset[int]:
        """The units that write their result over the iteration's start value (rule 9), or over the
        conditional's result (rule 11)."""
        units, producers = self.units, []
        for loop in units.graph.program.loops:
            for carry in loop.carries:
                if not isinstance(carry.next, int):
                    continue
                start, producer = units.producer.get(carry.current), units.producer.get(carry.next)
                if start is None or producer is None or units.units[producer].loop != loop.index:
                    continue
                behind = units.spans[loop.index][1]
                reads = [use.time for use in units.uses[start] if use.time < behind]
                is_alone = units.units[producer].outputs == (carry.next,)
                if is_alone and max(reads, default=-1) <= producer:
                    producers.append(producer)
        return frozenset(producers)


def runs_of(
    units: UnitGraph,
    unit: Unit,
    residency: UnitResidency,
    option: Residency,
    overwritten: frozenset[tuple[int, int]],
    fused: frozenset[tuple[int, int]],
) -> tuple[Run, ...]:
    """Returns the computations of a unit under one residency.

    - `option`: the residency, one of `residency.options`.
    - `overwritten`, `fused`: see `overwritten_pairs` and `fused_pairs`.
    """

    def run(start: int, end: int, *, shares_point: bool = False) -> Run:
        overwriting_unit = end if (unit.index, end) in overwritten else -1
        return Run(start, end, uses, overwriting_unit, shares_point)

    uses = tuple(use.time for use in units.uses[unit.index])
    if option.again_at is None:
        return (run(unit.index, option.end),)
    first_end = max(residency.last_forward_use, unit.index)
    again = run(option.again_at, option.end, shares_point=True)
    is_fused = option.recompute_at == option.end and (unit.index, option.end) in fused
    again = replace(again, is_fetched=not option.recomputes, is_fused=is_fused)
    return run(unit.index, first_end), again


def overwritten_pairs(units: UnitGraph, overwritable: Overwritable) -> frozenset[tuple[int, int]]:
    """Returns pairs of a unit and a reader that may write over the unit's result if it is the last
    reader.

    A reader writes over one result only. Of several, it takes the result whose last use is
    earliest, and among equals the result of the latest unit. `overwritable`: the compiler's rule
    for one unit.
    """
    pairs = set()
    for unit in units.units:
        victims = [
            producer.index
            for _, producer in overwritable_temporaries(units, unit, overwritable)
            if producer.index == unit.index - 1 or is_of_library(units.graph, producer)
        ]
        if victims:
            pairs.add(
                (
                    min(victims, key=lambda victim: (units.uses[victim][-1].time, -victim)),
                    unit.index,
                )
            )
    return frozenset(pairs)


@functools.lru_cache(maxsize=4)
def fused_pairs(units: UnitGraph) -> frozenset[tuple[int, int]]:
    """Returns pairs of two elementwise units in the same body. Only the second may read the first
    when the first runs again."""
    times = ((r.recompute_at for r in residency.options) for residency in residencies(units))
    again = [{time for time in unit_times if time is not None} for unit_times in times]
    of_maps = (u for u in units.units if all(is_map(units.graph, e) for e in u.equations))
    loops, pairs = {unit.index: unit.loop for unit in of_maps}, set()
    for unit, loop in loops.items():
        readers = [use.reader for use in units.uses[unit] if use.reader is not None]
        reading = again[unit].intersection(readers).difference(*(again[r] for r in readers))
        pairs |= {(unit, time) for time in reading if loops.get(time, -1) == loop}
    return frozenset(pairs)


def overwritable_temporaries(
    units: UnitGraph, unit: Unit, overwritable: Overwritable
) -> Iterator[tuple[int, Unit]]:
    """Yields the temporaries over which a unit may write its result, each with its producer."""
    if any(output in units.aliased_results for output in unit.outputs):
        return iter(())
    return temporaries(units, unit, overwritable(unit))


def temporaries(
    units: UnitGraph, reader: Unit, values: Iterable[int]
) -> Iterator[tuple[int, Unit]]:
    """Yields the members of `values` that are temporaries of the body in which `reader` runs, each
    with its producer. The producer has no other result."""
    for value in values:
        producer = units.producer.get(value)
        if producer is None or value in units.graph.program.result_values:
            continue
        unit = units.units[producer]
        if unit.loop == reader.loop and units.border(unit) is None and len(unit.outputs) == 1:
            yield value, unit
